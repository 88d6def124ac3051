"""The guard before all routes: which requests are taken, by their host, the page they come from and their token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from trims_predictors.endpoint.functions import HEADERS
from trims_predictors.endpoint.http.error_answers import error_answer
from trims_predictors.endpoint.http.openapi import is_open
from trims_predictors.endpoint.json.text import SMALL_BYTES
from trims_predictors.endpoint.principals import Principals, UnknownCallerError, may_ask_for

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

#: Hosts that a browser reaches this machine by. Another name in a request's Host is a page that had its own name point
#: here, to have the browser of a user of this machine send requests.
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
#: Methods that change nothing. Only these are taken from a browser that says another site's page is behind them.
_ONLY_READS = ("GET", "HEAD", "OPTIONS")
#: Values of Sec-Fetch-Site for requests of the endpoint's own page, and for requests that no page has made.
_OWN_PAGE = ("same-origin", "none")


#: Beginning of the names of headers that ask for something of trims, and of the paths that take them.
_PREFIX, _FUNCTIONS = "trims-", "/functions/"
_LISTED = ", ".join(HEADERS)
#: Letters of a path: more than any with three names in it has.
_MOST_PATH = 1024


class Guard:
    """Lets requests pass that may be taken, and answers the others itself.

    Not a middleware of Starlette's own kind, which would put a queue and two tasks between each request and its answer.
    """

    def __init__(self, app: ASGIApp, callers: Principals, *, loopback: bool) -> None:
        self._app = app
        self._callers = callers
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        if refusal is not None and _may_be_large(Request(scope)):
            refusal.headers["Connection"] = "close"  # its body may go on without end
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", "").lower(), request.headers.get("origin")
        name, _, port = host.rpartition(":")
        known = (name in _LOOPBACK_HOSTS and port.isdecimal()) or host in _LOOPBACK_HOSTS
        if self._loopback and not known and ("host" in request.headers or _is_of_a_browser(request)):
            return error_answer(request, 403, f"the endpoint listens on this machine only, and not as {host!r:.80}")
        if origin is not None and (not host or origin.partition("://")[2].lower() != host):
            return error_answer(request, 403, f"requests from pages of {origin!r:.80} are not taken")
        if request.method not in _ONLY_READS and request.headers.get("sec-fetch-site", "none") not in _OWN_PAGE:
            return error_answer(request, 403, "requests from pages of other sites are not taken")
        # Not `request.url.path`: older versions of Starlette make that from the header Host, too.
        path = request.scope["path"]
        if "\0" in path or len(path) > _MOST_PATH:
            return error_answer(
                request, 400, f"the path has {len(path)} letters, or a zero byte; it may have {_MOST_PATH}, without one"
            )
        return (None if is_open(path) else self._not_allowed(request)) or _unknown_header(request, path)

    def _not_allowed(self, request: Request) -> Response | None:
        """The answer to a request that its caller may not make; None if it may."""
        path = request.scope["path"]
        try:
            tenant = self._callers.enter(request.headers.get("authorization", ""))
        except UnknownCallerError:
            refused = error_answer(request, 401, "this endpoint needs `Authorization: Bearer TOKEN`")
            refused.headers["WWW-Authenticate"] = "Bearer"
            return refused
        if may_ask_for(tenant, path):
            return None
        return error_answer(
            request,
            403,
            f"{path!r:.80} is for the operator of this endpoint; tenants ask for what is under /v2 and /functions",
        )


def _unknown_header(request: Request, path: str) -> Response | None:
    """Return the answer to a request with a header of ours that would be ignored; None for any other request."""
    known = HEADERS if path.startswith(_FUNCTIONS) else ()
    for name in request.headers:
        if name.startswith(_PREFIX) and name not in known:
            takes = f"takes {_LISTED}" if known else f"takes none of this kind; {_FUNCTIONS}NAME takes {_LISTED}"
            return error_answer(request, 400, f"the header {name:.80} is not known here: {path:.200} {takes}")
    return None


def _is_of_a_browser(request: Request) -> bool:
    """Return whether a request may come from a page. Programs that name no host, such as HAProxy, lack such fields."""
    return any(name == "origin" or name.startswith("sec-fetch-") for name in request.headers)


def _may_be_large(request: Request) -> bool:
    """Return whether a request's body is more than comes with its head, or does not say."""
    stated = request.headers.get("content-length", "0")
    return "transfer-encoding" in request.headers or not stated.isdigit() or int(stated) > SMALL_BYTES
