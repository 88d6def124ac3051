"""Manifests from elsewhere: what comes with a fetched model may name nothing of this machine, and no code.

A model's publisher says what its tensors are and how they are prepared. Where files lie on this machine, which hosts
are asked, and which functions run is the operator's to say: in a manifest that is registered here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import AddressRefusedError
from trims.manifests.addresses import scheme_of
from trims.manifests.fields import CALL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Fields of a manifest that may come from elsewhere; all others are this machine's.
FIELDS = (
    "version", "description", "license", "framework", "attributes", "predictor", "inputs", "preprocess", "postprocess",
    "outputs",
)  # fmt: skip
#: Fields that are for people: what they say is not followed.
_PROSE = ("description", "license", "attributes")


def foreign_fields(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a manifest from elsewhere that count here.

    Args:
        raw: The manifest.
        where: Its address, for errors.

    Raises AddressRefusedError naming the field that leads to this machine's files, to a host, or to code.
    """
    taken = {name: raw[name] for name in FIELDS if name in raw}
    for name, value in taken.items():
        for path, text in _texts(value, name) if name not in _PROSE else ():
            wrong = _wrong(text)
            if wrong:
                raise AddressRefusedError(
                    f"the manifest at {where} names {wrong} ({path}: {text!r:.100}), which one from elsewhere may not; "
                    "if that is meant, write a manifest of your own with the address, and register it"
                )
    return taken


def portable_fields(raw: Mapping[str, Any], origin: str) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a manifest of this machine that may go elsewhere, and the names of those that may not.

    Args:
        raw: The manifest.
        origin: Folder that its relative paths begin at: a field that names a file there stays here, as its file does.
    """
    taken, left = {}, []
    for name in (each for each in FIELDS if each in raw):
        texts = [text for _, text in _texts(raw[name], name)] if name not in _PROSE else []
        if any(_wrong(text) or (origin and Path(origin, text).is_file()) for text in texts):
            left.append(name)
        else:
            taken[name] = raw[name]
    if "preprocess" in left and "inputs" in taken:  # which are those of a request, and not of the model
        left.append("inputs")
        del taken["inputs"]
    return taken, left


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _texts(each, f"{path}.{name}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _texts(each, f"{path}[{index}]")


def _wrong(text: str) -> str:
    if text.startswith(("/", "~")) or ".." in re.split(r"[/\\]", text):
        return "a path outside its folder"
    if scheme_of(text) or "://" in text:
        return "code" if re.match(CALL, text) else "an address"
    return "code" if re.match(CALL, text) else ""
