"""The web page at `/`: its files, the state that it polls, and the orders that it gives.

Everything but `/` lies under `/ui/`. The page and its files are served without a token, because a browser cannot send
one with them; what they ask for needs it like any other request.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from trims.control.registration import is_manifest
from trims.core.errors import BrokenWeightsError, CallerError, PermissionDeniedError
from trims.manifests.manifest import parse_manifest
from trims.manifests.runs import why_not_run
from trims_predictors.endpoint.bodies import read_object
from trims_predictors.endpoint.disconnects import unless_gone
from trims_predictors.endpoint.requests.request_limits import check_fields

if TYPE_CHECKING:
    from trims_predictors.endpoint.service import Service

#: Path of the page's files; they hold nothing of this machine's.
FILES = "/ui/files/"
_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    # Nothing from elsewhere, no inline script or style, no frame round it, and no text that becomes markup.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The next version of trims has other files under the same names.
    "Cache-Control": "no-cache",
}


def read_files() -> dict[str, bytes]:
    """The files of the page, by name."""
    folder = resources.files("trims_predictors.endpoint") / "page"
    found = [each for each in folder.iterdir() if each.name.rpartition(".")[2] in _MEDIA_TYPES]
    return {each.name: each.read_bytes() for each in found}


def add_page_routes(router: APIRouter, service: Service, most_body_bytes: int, *, has_token: bool) -> None:
    """Add the page, its files, its state and its orders; an endpoint without a token does not add models."""
    _add_files(router)
    _add_orders(router, service, most_body_bytes)
    _add_addition(router, service, most_body_bytes, has_token=has_token)

    @router.get("/ui/state")
    async def state() -> Response:
        return Response(await service.repository.overview.page(service.pool.report), media_type="application/json")


def _add_files(router: APIRouter) -> None:
    files = read_files()

    def answer(name: str) -> Response:
        media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
        return Response(files[name], media_type=media_type, headers=_HEADERS)

    @router.get("/")
    async def page() -> Response:
        return answer("page.html")

    @router.get(FILES + "{name}")
    async def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, f"the page has no file {name!r:.80}")
        return answer(name)


def _add_orders(router: APIRouter, service: Service, most_body_bytes: int) -> None:
    async def place_in(request: Request) -> str | None:
        given = await read_object(request, most_body_bytes)
        check_fields(given, ("place",), "the request")
        place = given.get("place")
        if place is not None and not isinstance(place, str):
            raise CallerError(f"'place' must be a text such as cpu, not {place!r:.80}")
        return place or None

    @router.post("/ui/models/{model}/load")
    async def load(request: Request, model: str) -> Response:
        place = await place_in(request)

        async def brought() -> Response:
            replica = await service.repository.bring(model, place)
            return JSONResponse({"place": replica.place, "bytes": replica.nbytes})

        return await unless_gone(request, brought())

    @router.post("/ui/models/{model}/pin")
    async def pin(request: Request, model: str) -> dict[str, Any]:
        await service.repository.pin(model, await place_in(request) or "cpu", pinned=True)
        return {}

    @router.post("/ui/models/{model}/unpin")
    async def unpin(request: Request, model: str) -> dict[str, Any]:
        await service.repository.pin(model, await place_in(request) or "cpu", pinned=False)
        return {}

    @router.post("/ui/models/{model}/evict")
    async def evict(request: Request, model: str) -> dict[str, Any]:
        evicted = await service.repository.evict(model, await place_in(request) or "cpu")
        return {"freed": list(evicted.freed), "draining": list(evicted.draining)}


def _add_addition(router: APIRouter, service: Service, most_body_bytes: int, *, has_token: bool) -> None:
    @router.post("/ui/models", status_code=201)
    async def add(request: Request) -> Response:
        if not has_token:  # the daemon reads what its user may read, and any user of this machine can ask
            raise PermissionDeniedError(
                "models are added over HTTP with the operator's token only, and this endpoint has none; start it with "
                "--token-file, or run `trims add PATH`"
            )
        path, name, task = _wanted(await read_object(request, most_body_bytes))

        async def added() -> Response:
            try:
                model = await service.repository.add(path, name=name, task=task)
            except BrokenWeightsError as error:  # what lies there is the caller's, who named it
                raise CallerError(str(error)) from error
            note = why_not_run(parse_manifest(model.manifest, model.origin), model.format, model.files)
            added = {"name": model.name, "version": model.version, "format": model.format, "note": note}
            return JSONResponse(added, 201)

        return await unless_gone(request, added())


def _wanted(given: dict[str, Any]) -> tuple[str, str | None, str | None]:
    """Return path, name and task of a model to add. Raises CallerError."""
    unknown = sorted(given.keys() - {"path", "name", "task"})
    if unknown:
        raise CallerError(f"a model is added by 'path', 'name' and 'task'; {unknown[0]!r:.80} is none of these")
    for field, value in given.items():
        if not isinstance(value, str):
            raise CallerError(f"{field!r} must be a text, not {value!r:.80}")
        if not value:
            raise CallerError(f"{field!r} is empty; leave it out, or name one")
    path = given.get("path", "")
    if not path.startswith("/") or "\0" in path:
        raise CallerError(f"'path' must be the whole path of a folder or a file of weights, not {path!r:.80}")
    opened = Path(path)  # as registration opens it, without `/` and `/.` at its end
    if is_manifest(opened) or opened.suffix == ".py":
        raise CallerError(
            f"{path:.200} can name code to run, so it is not added over HTTP; run `trims add {opened!s:.200}`"
        )
    return str(opened), given.get("name"), given.get("task")
