"""The two sides of the hub's cache in tests: trims, and the hub's own client in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from trims.sources.http.client import Http
from trims.sources.http.hosts import HostPolicy
from trims.sources.hub.source import HubSnapshot, HubSource
from trims.sources.settings import SourceSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stub_hub import Apart, StubHub

    from trims.sources.base import RemoteFile

NAME = "org/model"
#: Bytes that a test asks for at once.
PART_BYTES = 64 << 10


def environment(hub: StubHub | Apart, home: Path, **more: str) -> dict[str, str]:
    """Environment variables that lead all programs to a hub, and to a cache in a folder; nothing leaves the machine."""
    return {"HOME": str(home), "HF_HOME": str(home / "hf"), "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", **more}


def source(variables: Mapping[str, str]) -> HubSource:
    """The scheme with these variables. The stub's private address is allowed for being the endpoint's."""
    return HubSource(SourceSettings(Http(HostPolicy()), variables))


def look(variables: Mapping[str, str], address: str = f"hf://{NAME}") -> HubSnapshot:
    """Look at an address; close it."""
    return source(variables).open(address)


def names(opened: HubSnapshot) -> list[str]:
    return [file.name for file in opened.files]


def content(opened: HubSnapshot, file: RemoteFile) -> bytes:
    """The bytes of a file, from its source."""
    data = bytearray(file.nbytes)
    for begin in range(0, file.nbytes, PART_BYTES):
        with memoryview(data)[begin : begin + PART_BYTES] as part:
            for _ in opened.fill(file, [(begin, part)]):
                pass
    return bytes(data)


def fetch(variables: Mapping[str, str], address: str = f"hf://{NAME}") -> Path:
    """Bring what an address needs into the hub's cache, as a transfer does. Return the folder."""
    opened = look(variables, address)
    try:
        for file in opened.files:
            with opened.cached.lock(file, lambda: True):
                if opened.cached.find(file) is None:
                    partial = opened.cached.partial(file)
                    partial.write_bytes(content(opened, file))
                    opened.cached.publish(file, partial)
        return opened.cached.finish(opened.files)
    finally:
        opened.close()


def real_client(variables: Mapping[str, str], code: str) -> Any:
    """Run code with the hub's own client, and return the value of `found`, which is sent as JSON."""
    program = f"import json, huggingface_hub as hf\n{code}\nprint(json.dumps(found))"
    path = {"PATH": os.environ["PATH"], "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], env={**path, **variables}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


#: Problems that the hub's client finds in its cache.
SCAN = (
    "cache = hf.scan_cache_dir()\n"
    "found = [str(each) for each in cache.warnings] + [str(each.file_path) for each in cache.incomplete_files]"
)


def tree(folder: Path) -> dict[str, str]:
    """Every file and link below a folder, with what it holds or leads to."""
    return {
        path.relative_to(folder).as_posix(): os.readlink(path) if path.is_symlink() else path.read_bytes().hex()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }
