"""Modules beside a manifest: a function that its options name may lie in a file of the manifest's own folder.

Every folder may have a `model.py`, while a process has one module of that name. So each use says which folder it means,
and is refused where the process has imported another file under the name. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Folders of manifests from which this process has imported modules.
_folders: set[str] = set()


def files_beside(origin: str, module: str) -> dict[str, Path]:
    """Return files in a manifest's folder that importing a module runs, by the names of the module and its packages.

    Empty if the module does not lie there. Found as the importer finds them, but without importing anything.
    """
    found: dict[str, Path] = {}
    folder, name = Path(origin), ""
    for part in module.split(".") if origin else ():
        name = f"{name}.{part}" if name else part
        own = [folder / part / "__init__.py", folder / f"{part}.py"]
        file = next((each for each in own if part.isidentifier() and each.is_file()), None)
        if file is not None:
            found[name] = file
        folder = folder / part
    return found if name in found else {}


def builder_facts(origin: str, module: str) -> dict[str, str]:
    """Return the facts, besides its arguments, that decide what a manifest's module builder makes.

    Returns:
        The manifest's folder, and a digest of the builder's file if it lies there. Of the modules that this file
        imports, all that is said is the folder. Empty without a folder: what is installed is trusted to stay the same.
    """
    if not origin:
        return {}
    files = files_beside(origin, module)
    digest = hashlib.sha256()
    for name, file in files.items():
        content = _content(file)
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return {"origin": origin, "sha256": digest.hexdigest()} if files else {"origin": origin}


@contextlib.contextmanager
def modules_beside(origin: str, modules: Iterable[str], what: str, *, alike: bool = False) -> Iterator[None]:
    """Have modules imported from a manifest's folder first, as long as the block lasts.

    Args:
        origin: The folder; empty for none.
        modules: Modules that the block is going to use.
        what: Named in messages.
        alike: A file of the same content will do.

    Raises NotSupportedError, before and after the block, if the process has imported another file under a name.
    """
    if not origin:
        yield
        return
    modules = list(modules)
    refuse_others(origin, modules, what, alike=alike)
    _folders.add(origin)
    sys.path.insert(0, origin)
    try:
        yield
    finally:
        if origin in sys.path:  # the block may have taken it out
            sys.path.remove(origin)
    refuse_others(origin, modules, what, alike=alike)


def refuse_others(origin: str, modules: Iterable[str], what: str, *, alike: bool = False) -> None:
    """Raise NotSupportedError if one of the modules, or one that they may import, is another file in this process."""
    for module in modules:
        for name, file in files_beside(origin, module).items():
            if name in sys.modules and not _is_loaded_from(name, file, alike=alike):
                raise _other(name, file, what)
    for name in _of_other_folders(origin):
        same_name = files_beside(origin, name).get(name)
        if same_name is not None and not _is_loaded_from(name, same_name, alike=True):
            raise _other(name, same_name, what)


def _of_other_folders(origin: str) -> list[str]:
    """Return the names of imported modules that lie beside other manifests."""
    others = tuple(os.path.join(folder, "") for folder in _folders if folder != origin)
    if not others:
        return []
    here = {Path(entry).stem for entry in os.listdir(origin)} if os.path.isdir(origin) else set()
    loaded = [(name, _file_of(module)) for name, module in list(sys.modules.items()) if name.partition(".")[0] in here]
    return [name for name, file in loaded if file.startswith(others)]


def _is_loaded_from(name: str, file: Path, *, alike: bool) -> bool:
    loaded = _file_of(sys.modules[name])
    if not loaded or not Path(loaded).is_file():
        return False
    return os.path.samefile(loaded, file) or (alike and _content(Path(loaded)) == _content(file))


def _file_of(module: object) -> str:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else ""


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise NotSupportedError(f"{file} cannot be read: {error}") from error


def _other(name: str, file: Path, what: str) -> NotSupportedError:
    loaded = _file_of(sys.modules[name]) or "one without a file"
    return NotSupportedError(
        f"{what}: its module {name!r} is {file}, and this process has imported {loaded} under that name; "
        "rename one of them, or use a process for each"
    )


def load_name(name: str, what: str) -> Any:
    """Import `package.module:attribute`. Raises NotSupportedError naming the environment it is missing from."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise NotSupportedError(f"{what} {name!r} cannot be loaded in {sys.prefix}: {error}") from error
    return found
