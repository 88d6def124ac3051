"""The code beside a manifest: which files a model's predictor and steps are imported from, and whether they changed.

A predictor is replaced when its code was edited, as when its manifest was. Only files in the manifest's folder count:
installed packages are trusted to stay as they are until the endpoint starts again.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import deque
from typing import TYPE_CHECKING

from trims.image.modules_beside import files_beside
from trims.manifests.steps import CALL_STEP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.manifests.manifest import Manifest

#: Files of one model that are looked at, at most once a second.
_MOST_FILES = 512
#: Folders of one model that are searched for them.
_MOST_FOLDERS = 64


def code_identity(manifest: Manifest) -> str:
    """Return another text once code beside the manifest was edited; empty if the manifest names none that lies there.

    Modules that the named one may import from there count as well: all of the folder, of the packages that the name
    leads through, and of folders below these that have modules. Looks at files; call it from a worker.
    """
    named: dict[str, None] = {}
    if handler := manifest.predictor.handler:
        named[os.path.join(manifest.origin, handler.rpartition(":")[0])] = None
    for module in _modules(manifest):
        named.update(dict.fromkeys(map(str, files_beside(manifest.origin, module).values())))
    if not named:
        return ""
    beside = itertools.chain.from_iterable(
        _python_files(folder) for folder in dict.fromkeys(map(os.path.dirname, named))
    )
    facts = hashlib.sha256()
    for path in itertools.chain(named, itertools.islice(beside, _MOST_FILES)):
        facts.update(_facts(path).encode("utf-8", "surrogateescape"))
    return facts.hexdigest()


def _modules(manifest: Manifest) -> Iterator[str]:
    steps = (*manifest.preprocess, *manifest.postprocess)
    calls = [manifest.predictor.call, manifest.predictor.function]
    calls += [str(step.fields["call"]) for step in steps if step.kind == CALL_STEP]
    # Which makes the module of a torch model: a predictor that starts imports it again.
    builder = manifest.artifact.options.get("module")
    calls += [builder] if isinstance(builder, str) else []
    yield from (call.partition(":")[0] for call in calls if call)


def _python_files(folder: str) -> list[str]:
    """Return modules in a folder and below it, those of outer folders first; a large tree is cut off."""
    found: list[str] = []
    waiting = deque([folder])
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            break
        inner = waiting.popleft()
        try:
            with os.scandir(inner) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError:  # it is being replaced: its files count once they are there
            continue
        modules = [entry.path for entry in entries if entry.name.endswith(".py")]
        found += modules
        if modules or inner == folder:
            waiting.extend(entry.path for entry in entries if entry.name.isidentifier() and _is_folder(entry))
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # such as a link that leads to itself
        return False


def _facts(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError as error:
        return f"{path} {error.errno}\n"
    return f"{path} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n"
