"""Converters that are available: the entry points of the group `trims.formats`, checked when they are loaded.

Plugins are imported only when needed: one by name for `converter`, all of them for `detect`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import logging
import os
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    ConfigError,
    ConversionError,
    NotSupportedError,
    TrimsError,
)
from trims.formats.base import Converter
from trims.formats.foreign import (
    FIRST_BYTES,
    describe_archive,
    describe_failed_download,
    describe_foreign,
    find_failed_download,
    first_bytes_of,
)
from trims.image.source import SourceFile, open_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)
GROUP = "trims.formats"
#: Prefix of the entry points of trims itself.
_OURS = "trims.formats."
#: Seconds between two looks for plug-ins that were installed since the first: each reads every package's record.
_LOOK_AGAIN_S = 1.0
_looked_at_s = 0.0
#: Plug-ins whose fault is in the log.
_reported: set[str] = set()


def detect(main: Path) -> Converter:
    """Return the converter of this file, by its first bytes and name. Leave out a plug-in that cannot be used.

    Raises ArtifactError if the file is empty, no converter claims it, or more than one does.
    """
    with open_source(main) as fd:
        SourceFile.of(main, fd)
        first_bytes = os.pread(fd, FIRST_BYTES, 0)
    if (download := describe_failed_download(first_bytes)) is not None:
        raise ArtifactError(f"{main} is {download}")
    claiming = _claiming(main, first_bytes)
    if not claiming and _look_again():
        claiming = _claiming(main, first_bytes)
    if len(claiming) == 1:
        return claiming[0]
    if not first_bytes:
        raise ArtifactError(f"{main} is empty")
    if (foreign := describe_foreign(first_bytes)) is not None:
        raise NotSupportedError(f"{main} is {foreign}")
    named = " and ".join(found.format for found in claiming) or "no converter"
    unusable = "" if claiming else "".join(f"; {error}" for error in broken().values())
    raise ArtifactError(
        f"{main} is claimed by {named}; write `format:` in the manifest (known: {', '.join(formats())}){unusable}"
    )


def _claiming(main: Path, first_bytes: bytes, *, by_suffix: bool = True) -> list[Converter]:
    """Return the converters that claim a file; if there is none, those of its suffix, which say what is wrong."""
    usable = [found for found in map(_usable, _entry_points()) if found is not None]
    claiming = [found for found in usable if _claims(found, main, first_bytes)]
    if claiming or not by_suffix:
        return claiming
    return [found for found in usable if main.suffix in getattr(found, "suffixes", ())]


def _claims(found: Converter, main: Path, first_bytes: bytes) -> bool:
    try:
        return found.claims(main, first_bytes)
    except Exception as error:  # noqa: BLE001 - code of a plug-in: its fault must keep no other format from use
        _report(
            found.format, f"the {GROUP} plugin {found.format!r} failed over {main}: {type(error).__name__}: {error}"
        )
        return False


@contextlib.contextmanager
def naming_foreign(format: str, files: Sequence[Path]) -> Iterator[None]:  # noqa: A002 - the manifest's word
    """Explain errors of the block that reads an artifact: if a file is not of the format, say what it is.

    Args:
        format: Name of the converter that reads.
        files: Files of the artifact, the main one first.

    Raises ArtifactError in the place of an error that says less.
    """
    try:
        yield
    except (ArtifactNotFoundError, ArtifactChangedError):
        raise
    except (ArtifactError, ConversionError) as error:
        found = find_failed_download(files)
        if found is None and (other := _other_format(format, files[0])) is not None:
            found = files[0], other
        if found is None:
            raise
        raise ArtifactError(f"{found[0]} is {found[1]}") from error


def _other_format(format: str, main: Path) -> str | None:  # noqa: A002 - the manifest's word
    """Return what a file is that is of another format, by its first bytes; None if it may be of this one."""
    first_bytes = first_bytes_of(main)
    claiming = [found.format for found in _claiming(main, first_bytes, by_suffix=False)]
    if format in claiming:
        return None
    if claiming:
        return f"of the format {claiming[0]}, not {format}: write `format: {claiming[0]}` in the manifest, or no format"
    return describe_foreign(first_bytes) or describe_archive(first_bytes)


def converter(format: str) -> Converter:  # noqa: A002 - the manifest's word
    """Return the converter of this name.

    Raises NotSupportedError naming all there are, ConfigError for a broken plug-in.
    """
    entries = _entry_points()
    if format not in entries and _look_again():
        entries = _entry_points()
    if format not in entries:
        raise NotSupportedError(
            f"there is no format {format!r}; known are {', '.join(formats())} (a plug-in that was installed after the "
            "daemon had started may need its restart)"
        )
    return _load(entries[format])


def load_all() -> None:
    """Import every converter now, so that the first artifact does not wait for it. One that is broken is logged."""
    for name in formats():
        _usable(name)


def formats() -> tuple[str, ...]:
    """Return names of all formats, also of plug-ins that cannot be used."""
    return tuple(sorted(_entry_points()))


def broken() -> dict[str, str]:
    """Return why a plug-in cannot be used, for each that cannot, by its name."""
    found: dict[str, str] = {}
    for name, entry in _entry_points().items():
        try:
            _load(entry)
        except TrimsError as error:
            found[name] = str(error)
    return found


def _usable(name: str) -> Converter | None:
    """Return the converter of a name; None for a plug-in that cannot be used, which is logged once."""
    try:
        return _load(_entry_points()[name])
    except TrimsError as error:
        _report(name, f"the format {name} cannot be used: {error}")
        return None


def _report(name: str, what: str) -> None:
    if name not in _reported:
        _reported.add(name)
        log.warning("%s", what)


def _look_again() -> bool:
    """Forget which plug-ins are installed, at most once a second: one may be new. Return whether that was done."""
    global _looked_at_s  # noqa: PLW0603 - one process has one set of installed packages
    now_s = time.monotonic()
    if now_s - _looked_at_s < _LOOK_AGAIN_S:
        return False
    _looked_at_s = now_s
    importlib.invalidate_caches()
    _entry_points.cache_clear()
    return True


@dataclass(frozen=True, slots=True)
class _Conflict:
    """Entry points of one name; which of them serves must not be chance."""

    name: str
    values: tuple[str, ...]


@cache
def _entry_points() -> Mapping[str, importlib.metadata.EntryPoint | _Conflict]:
    """Return the plug-ins by name. A name of ours stays ours."""
    found: dict[str, dict[str, importlib.metadata.EntryPoint]] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        found.setdefault(entry.name, {})[entry.value] = entry
    return {name: _of_one_name(name, entries) for name, entries in found.items()}


def _of_one_name(
    name: str, entries: Mapping[str, importlib.metadata.EntryPoint]
) -> importlib.metadata.EntryPoint | _Conflict:
    ours = [entry for value, entry in entries.items() if value.startswith(_OURS)]
    if ours and len(entries) > 1:
        others = ", ".join(value for value in entries if not value.startswith(_OURS))
        _report(others, f"the {GROUP} plugin {name!r} ({others}) has the name of a format of trims and is left out")
    return next(iter(ours or entries.values())) if ours or len(entries) == 1 else _Conflict(name, tuple(entries))


@cache
def _loaded(entry: importlib.metadata.EntryPoint) -> Converter | str:
    """Return a plug-in's converter, or why there is none: its import is tried once."""
    where = f"the {GROUP} plugin {entry.name!r} ({entry.value})"
    try:
        found = entry.load()()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it may fail in any way, and must not look like our failure
        return f"{where} cannot be loaded: {type(error).__name__}: {error}; mend or uninstall it, restart the daemon"
    if not isinstance(found, Converter) or found.format != entry.name:
        return f"{where} is not a Converter whose format is {entry.name!r}"
    return found


def _load(entry: importlib.metadata.EntryPoint | _Conflict) -> Converter:
    if isinstance(entry, _Conflict):
        raise ConfigError(
            f"two plugins call themselves {entry.name!r}: {' and '.join(entry.values)}; uninstall one of their packages"
        )
    found = _loaded(entry)
    if isinstance(found, str):
        raise ConfigError(found)
    return found
