"""Addresses of a daemon: the runtime folder and the names of the sockets in it.

Paths are text here: every cold start of a client comes by, and pathlib or tempfile would be a tenth of it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ATTACH_SOCKET = "attach.sock"
#: Folder with the attach socket under its own name, and nothing else: the part that a container or namespace gets.
ATTACH_FOLDER = "attach"
#: Folder that has a folder for each tenant, with the attach socket of that tenant in it.
TENANTS_FOLDER = "tenants"
CONTROL_SOCKET = "control.sock"
RUNTIME_VARIABLE = "TRIMS_RUNTIME_DIR"
#: Bytes that a runtime folder's path may have: a socket may have 107, and `/attach/attach.sock` is the longest.
MOST_BYTES = 88


def default_runtime_dir(environment: Mapping[str, str] | None = None) -> str:
    """Return `$TRIMS_RUNTIME_DIR`, `$XDG_RUNTIME_DIR/trims`, or a folder of this user under `$TMPDIR` or /tmp."""
    env = os.environ if environment is None else environment
    if env.get(RUNTIME_VARIABLE):
        return env[RUNTIME_VARIABLE]
    if env.get("XDG_RUNTIME_DIR"):
        return f"{env['XDG_RUNTIME_DIR']}/trims"
    return f"{env.get('TMPDIR', '/tmp').rstrip('/')}/trims-{os.getuid()}"  # noqa: S108 - its owner and mode are checked


def why_too_long(runtime_dir: str | os.PathLike[str]) -> str:
    """Return why no socket can lie in a runtime folder with so long a path; empty text if one can."""
    nbytes = len(os.fsencode(runtime_dir))
    if nbytes <= MOST_BYTES:
        return ""
    return (
        f"the runtime folder {os.fspath(runtime_dir)} has a path of {nbytes} bytes, and {MOST_BYTES} are the most for "
        f"the sockets in it; choose a shorter one (--runtime-dir, {RUNTIME_VARIABLE})"
    )
