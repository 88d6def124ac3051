"""Versions of modules, which PyTorch keeps beside a state dict (`_metadata`) and modules read when they load one.

An image carries them as one string of its metadata: local metadata, and the names of the modules that have it, for each
that differs. Standard library only.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Key of the image's metadata.
STATE_VERSIONS = "torch.state_dict"


def encode_versions(metadata: Any) -> str:
    """Return the string for a state dict's `_metadata`; empty if there is none.

    Raises ValueError for one that JSON cannot hold.
    """
    if not metadata:
        return ""
    groups: dict[str, list[str]] = {}
    try:
        for name, local in metadata.items():
            groups.setdefault(json.dumps(local, sort_keys=True), []).append(name)
        text = json.dumps([[json.loads(local), names] for local, names in groups.items()], separators=(",", ":"))
    except (AttributeError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if decode_versions(text) != dict(metadata) or not all(isinstance(name, str) for name in metadata):
        raise ValueError("it has other types than those of JSON")
    return text


def decode_versions(text: str) -> OrderedDict[str, dict[str, Any]]:
    """Return the `_metadata` that a string stands for. Raises ValueError for a string that is none."""
    try:
        groups = json.loads(text)
        return OrderedDict((name, dict(local)) for local, names in groups for name in names)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def renamed_versions(metadata: Mapping[str, Any], names: Mapping[str, str]) -> OrderedDict[str, Any]:
    """Return the `_metadata` for tensors under other names: `names` has the new ones by the old."""
    found = OrderedDict(metadata)
    for old, new in names.items():
        (before, _, leaf), (after, _, last) = old.rpartition("."), new.rpartition(".")
        if before != after and leaf == last and before in metadata:
            found[after] = dict(metadata[before])
    return found
