"""A real server of Azure's blobs (Azurite), which checks every signature, and what issues tokens for it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import shutil
import ssl
import subprocess
import time
import urllib.parse
import urllib.request
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Account and key that the server has by default; both are published.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "models"
_HERE = Path(__file__).parents[2] / ".venv-clients" / "node" / "node_modules" / ".bin"
_FOLDERS = os.pathsep.join([str(_HERE), os.environ.get("PATH", "")])
_READY_S = 60.0


def why_not() -> str:
    """Return why no server can be started here; empty if one can."""
    return (
        "" if shutil.which("azurite-blob", path=_FOLDERS) else "Azurite is not installed (make clients-env, with npm)"
    )


@contextlib.contextmanager
def azurite(folder: Path, authority: Path, certificate: Path) -> Iterator[str]:
    """Give the account's endpoint for a block: over TLS, for keys, signatures and tokens; it has one container."""
    program = shutil.which("azurite-blob", path=_FOLDERS)
    assert program is not None
    command = [
        program, "--inMemoryPersistence", "--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort", "0",
        "--skipApiVersionCheck", "--cert", str(certificate), "--key", str(certificate), "--oauth", "basic",
    ]  # fmt: skip
    log = folder / "azurite.log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, cwd=folder) as process:
        try:
            endpoint = f"{_listening(process, log)}/{ACCOUNT}"
            _make_container(endpoint, ssl.create_default_context(cafile=str(authority)))
            yield endpoint
        finally:
            process.kill()


def _listening(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + _READY_S
    while (found := re.search(r"successfully listens on (https://\S+)", log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)
    return found[1]


def _make_container(endpoint: str, tls: ssl.SSLContext) -> None:
    """Make the container by a request that is signed here, by none of the product's code."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed = "PUT" + "\n" * 12 + named + f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{_signature(signed)}"
    url = f"{endpoint}/{CONTAINER}?restype=container"
    request = urllib.request.Request(url, method="PUT", headers={**headers, "Content-Length": "0"})
    with urllib.request.urlopen(request, context=tls, timeout=_READY_S) as answer:
        assert answer.status == 201


def account_signature(permissions: str = "rwdlac") -> str:
    """Return a shared access signature of the account, good for an hour, with these permissions."""
    begins, ends = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + away_s)) for away_s in (-600, 3600))
    version = "2021-08-06"
    signed = f"{ACCOUNT}\n{permissions}\nb\nsco\n{begins}\n{ends}\n\nhttps\n{version}\n\n"
    fields = {
        "sv": version, "ss": "b", "srt": "sco", "sp": permissions, "st": begins, "se": ends, "spr": "https",
        "sig": _signature(signed),
    }  # fmt: skip
    return urllib.parse.urlencode(fields)


def _signature(text: str) -> str:
    return base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()


def access_token() -> str:
    """Return a token as Entra ID issues them; the server looks at its claims and not at its signature."""
    now = int(time.time())
    claims = {
        "aud": "https://storage.azure.com", "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
        "iat": now - 60, "nbf": now - 60, "exp": now + 3600,
        "oid": "23657296-5cd5-45b0-a809-d972a7f4dfe1", "tid": "dd0d0df1-06c3-436c-8034-4b9a153097ce",
    }  # fmt: skip
    parts = [{"alg": "RS256", "typ": "JWT"}, claims, {"made": "up"}]
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


def token_answer() -> bytes:
    """Return what a token's endpoint answers with, of Entra ID or of a machine's managed identity."""
    ends = str(int(time.time()) + 3600)
    return json.dumps(
        {"access_token": access_token(), "token_type": "Bearer", "expires_in": 3600, "expires_on": ends}
    ).encode()
