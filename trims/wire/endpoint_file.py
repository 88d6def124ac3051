"""File in the daemon's runtime folder by which an endpoint is found: it says where the endpoint answers.

The endpoint writes it when it listens. When it ends, the one that was there before has its place again if it still
runs; else the file goes. One that was killed leaves it behind, so what it says is tried, and never believed.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass

ENDPOINT_FILE = "endpoint.json"
#: File that says why an endpoint that the daemon has started could not serve.
ERROR_FILE = "endpoint.error"
_MOST_BYTES = 10_000


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """Address of an endpoint.

    Attributes:
        url: Address for HTTP, such as `http://127.0.0.1:8000`.
        grpc: Host and port for gRPC; empty if it has none.
    """

    pid: int
    url: str
    grpc: str = ""


def leave_address(runtime_dir: str, address: EndpointAddress) -> None:
    """Write where an endpoint answers. Raises OSError if the folder cannot be written."""
    leave_text(os.path.join(runtime_dir, ENDPOINT_FILE), json.dumps(asdict(address)))


def leave_text(path: str, text: str) -> None:
    """Write a small file in one step, for this user only. Raises OSError."""
    draft = f"{path}.{os.getpid()}"
    with open(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(text)
    os.replace(draft, path)


def read_address(runtime_dir: str) -> EndpointAddress | None:
    """Return where an endpoint answered last; None if there was none, or if the file holds something else."""
    try:
        found = json.loads(read_text(os.path.join(runtime_dir, ENDPOINT_FILE)))
        return EndpointAddress(int(found["pid"]), str(found["url"]), str(found["grpc"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def read_text(path: str) -> str:
    """Return the text of a small file; empty if it is not there or cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return ""


def withdraw_address(runtime_dir: str, pid: int, before: EndpointAddress | None = None) -> None:
    """Take an address back that this process left. Another endpoint's file stays.

    Args:
        runtime_dir: The daemon's.
        before: Address that was there before; written again if that process still runs.
    """
    found = read_address(runtime_dir)
    if found is None or found.pid != pid:
        return
    with contextlib.suppress(OSError):
        if before is not None and before.pid != pid and _runs(before.pid):
            leave_address(runtime_dir, before)
        else:
            os.unlink(os.path.join(runtime_dir, ENDPOINT_FILE))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
