"""A real S3 server (moto's) in a process of its own, and a client of AWS's to look at what it has.

The server refuses a request whose signature is wrong, by the code of AWS's own library; one that is not signed at all
passes, as of a public bucket.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import selectors
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_START_S = 60.0
#: Keys that the server knows.
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAMADEUP", "AWS_SECRET_ACCESS_KEY": "made-up-secret"}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Give the server's address for a block; the server ends with it, or with this process."""
    command = [sys.executable, "-W", "ignore", __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{_port(process)}"
        finally:
            process.kill()


def _port(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    said, until = b"", time.monotonic() + _START_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not said.endswith(b"\n"):
            assert selector.select(until - time.monotonic()), "the S3 server did not come up"
            more = os.read(process.stdout.fileno(), 100)
            assert more, "the S3 server ended"
            said += more
    return int(said)


@contextlib.contextmanager
def s3_client(endpoint: str) -> Iterator[Any]:
    """Give a client of AWS's own for a block."""
    import boto3

    keys = {"aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"]}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    try:
        yield client
    finally:
        client.close()


_AUTHORIZATION = re.compile(r"AWS4-HMAC-SHA256 Credential=(\S+), ?SignedHeaders=(\S+), ?Signature=(\w+)\Z")
_REFUSAL = b"<Error><Code>SignatureDoesNotMatch</Code></Error>"


class Checked:
    """An application behind a check of signatures.

    Args:
        inner: The application.
    """

    def __init__(self, inner: Callable[..., Iterable[bytes]]) -> None:
        self._inner = inner

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if _is_allowed(environ, body):
            return self._inner(environ, start)
        start("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(_REFUSAL)))])
        return [_REFUSAL]


def _is_allowed(environ: dict[str, Any], body: bytes) -> bool:
    query = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    found = _AUTHORIZATION.match(environ.get("HTTP_AUTHORIZATION", ""))
    if found is not None:
        stated = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
        is_whole = stated in ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest())
        return is_whole and _signature(environ, found[1], found[2], query) == found[3]
    if "X-Amz-Signature" not in query:
        return "HTTP_AUTHORIZATION" not in environ
    sent = query.pop("X-Amz-Signature")
    return _signature(environ, query["X-Amz-Credential"], query["X-Amz-SignedHeaders"], query) == sent


def _signature(environ: dict[str, Any], scope: str, names: str, query: dict[str, str]) -> str:
    """Return the signature that a request should have, in the scope `KEY/DAY/REGION/s3/aws4_request`."""
    from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    key, _, region, service, _ = scope.split("/")
    by_query = "X-Amz-Credential" in query
    kind = S3SigV4QueryAuth if by_query else S3SigV4Auth
    signer = kind(Credentials(key, KEYS["AWS_SECRET_ACCESS_KEY"]), service, region)
    parameters = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(query.items()))
    url = f"http://{environ['HTTP_HOST']}{urlsplit(environ['RAW_URI']).path}?{parameters}"
    request = AWSRequest(environ["REQUEST_METHOD"], url, {name: _header(environ, name) for name in names.split(";")})
    request.context["timestamp"] = query["X-Amz-Date"] if by_query else environ["HTTP_X_AMZ_DATE"]
    return str(signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request))


def _header(environ: dict[str, Any], name: str) -> str:
    variable = name.upper().replace("-", "_")
    return str(environ.get(variable if variable in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{variable}", ""))


def main() -> None:
    """Serve until standard input ends."""
    import threading

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = Checked(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.write(1, b"%d\n" % server.server_port)
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
