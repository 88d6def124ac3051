"""Which converters there are: the entry points of the group `trims.formats`, checked when they are loaded.

Plugins are imported only when needed: one by name for `converter`, all of them for `detect`.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from functools import cache
from typing import TYPE_CHECKING

from trims.core.errors import ArtifactError, ConfigError, NotSupportedError, TrimsError
from trims.formats.base import Converter
from trims.image.source import SourceFile, open_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

log = logging.getLogger(__name__)
GROUP = "trims.formats"
#: What `claims` is shown of a file: enough for every magic number and the first name in a zip file.
FIRST_BYTES = 4096


#: First bytes of formats that are refused by name, and what to do instead.
_FOREIGN = {
    b"GGUF": "a GGUF file, whose quantised blocks are no tensors that a framework here reads: take the model's "
    "safetensors, or dequantise it with the tools of llama.cpp",
    b"\x89HDF\r\n": "an HDF5 file, as Keras writes them: save the weights as safetensors or .npz",
    b"\x80": "a pickle that torch.save did not write: save its arrays as safetensors or .npz, or its tensors with "
    "torch.save",
}


def detect(main: Path) -> Converter:
    """The converter of this file, by its first bytes and name.

    Raises ArtifactError if the file is empty, no converter claims it, or more than one does.
    """
    with open_source(main) as fd:
        SourceFile.of(main, fd)
        first_bytes = os.pread(fd, FIRST_BYTES, 0)
    claiming = [found for found in map(converter, _entry_points()) if found.claims(main, first_bytes)]
    if not claiming:  # then its name counts, so that its own format says what is wrong with it
        claiming = [each for each in map(converter, _entry_points()) if main.suffix in getattr(each, "suffixes", ())]
    if len(claiming) == 1:
        return claiming[0]
    if not first_bytes:
        raise ArtifactError(f"{main} is empty")
    for magic, refusal in _FOREIGN.items():
        if first_bytes.startswith(magic):
            raise NotSupportedError(f"{main} is {refusal}")
    named = " and ".join(found.format for found in claiming) or "no converter"
    raise ArtifactError(
        f"{main} is claimed by {named}; write `format:` in the manifest (known: {', '.join(formats())})"
    )


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
