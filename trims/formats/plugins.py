"""Which converters there are: the entry points of the group `trims.formats`, checked when they are loaded.

Plugins are imported only when needed: one by name for `converter`, all of them for `detect`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
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


def detect(main: Path) -> Converter:
    """The converter of this file, by its first bytes and name.

    Raises ArtifactError if the file is empty, no converter claims it, or more than one does.
    """
    with open_source(main) as fd:
        SourceFile.of(main, fd)
        first_bytes = os.pread(fd, FIRST_BYTES, 0)
    if (download := describe_failed_download(first_bytes)) is not None:
        raise ArtifactError(f"{main} is {download}")
    claiming = [found for found in map(converter, _entry_points()) if found.claims(main, first_bytes)]
    if not claiming:  # then its name counts, so that its own format says what is wrong with it
        claiming = [each for each in map(converter, _entry_points()) if main.suffix in getattr(each, "suffixes", ())]
    if len(claiming) == 1:
        return claiming[0]
    if not first_bytes:
        raise ArtifactError(f"{main} is empty")
    if (foreign := describe_foreign(first_bytes)) is not None:
        raise NotSupportedError(f"{main} is {foreign}")
    named = " and ".join(found.format for found in claiming) or "no converter"
    raise ArtifactError(
        f"{main} is claimed by {named}; write `format:` in the manifest (known: {', '.join(formats())})"
    )


@contextlib.contextmanager
def naming_foreign(format: str, files: Sequence[Path]) -> Iterator[None]:  # noqa: A002 - the manifest's word
    """For a block that reads an artifact: where it fails because a file is not of the format, say what the file is.

    Args:
        format: Name of the converter that reads.
        files: Those of the artifact, the main one first.

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
    claiming = [found.format for found in map(converter, _entry_points()) if found.claims(main, first_bytes)]
    if format in claiming:
        return None
    if claiming:
        return f"of the format {claiming[0]}, not {format}: write `format: {claiming[0]}` in the manifest, or no format"
    return describe_foreign(first_bytes) or describe_archive(first_bytes)


def converter(format: str) -> Converter:  # noqa: A002 - the manifest's word
    """The converter of this name. Raises NotSupportedError naming those there are."""
    entry = _entry_points().get(format)
    if entry is None:
        raise NotSupportedError(f"there is no format {format!r}; known are {', '.join(formats())}")
    return _load(entry)


def load_all() -> None:
    """Import every converter now, so that the first artifact does not wait for it. One that is broken is logged."""
    for name in formats():
        try:
            converter(name)
        except TrimsError as error:
            log.warning("the format %s cannot be used: %s", name, error)


def formats() -> tuple[str, ...]:
    """Names of all formats."""
    return tuple(sorted(_entry_points()))


@cache
def _entry_points() -> Mapping[str, importlib.metadata.EntryPoint]:
    found: dict[str, importlib.metadata.EntryPoint] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise ConfigError(f"two plugins call themselves {entry.name!r}: {other.value} and {entry.value}")
    return found


@cache
def _load(entry: importlib.metadata.EntryPoint) -> Converter:
    where = f"the {GROUP} plugin {entry.name!r} ({entry.value})"
    try:
        found = entry.load()()
    except Exception as error:  # a plugin may fail in any way; it must not look like our failure
        raise ConfigError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(found, Converter) or found.format != entry.name:
        raise ConfigError(f"{where} is not a Converter whose format is {entry.name!r}")
    return found
