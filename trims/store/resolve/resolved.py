"""A name that has been looked into, and texts of manifests that are compared."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trims.formats.base import Artifact
    from trims.manifests.manifest import Manifest
    from trims.tiers.cloud import CloudImage

#: Fields that manifests of older daemons did not have, and their values where they are not stated.
_YOUNGER = (("variables", ()), ("uri", None), ("model", None), ("handler", ""))


@dataclass(frozen=True, slots=True)
class Resolved:
    """A name that has been looked into.

    Attributes:
        name: Row of the registered version (see `Entry.row`), or a path; what catalog and pins know it by.
        artifact: Files and options for the converter.
        recipe: What besides the bytes decides the image.
        python: Interpreter of the environment conversion runs in; None for the daemon's own.
        identities: Identity of each file, to notice changes.
        checked_at_s: When they were last compared, on the store's clock.
        converted: Whether making the image takes a converter child.
        mount: Mount point of the main file: looking at it may hang with that file system.
        epoch: Epoch of the name when the look began.
        in_place: Key under which the artifact's own files may be served; None if they may not.
        why_not: What keeps them from being served: the end of a sentence. Empty if nothing does.
        hashed: Whether the files were read; until then `key` is `in_place`.
        certain: Whether a reading of the files is certain: so soon after a write, they may have changed since, although
            their identities have not.
        rests_at_s: Moment on the store's clock from which a reading of the files is certain.
        builder: Identity of the module builder's file that its options name, to notice edits; empty without one.
        cloud: The image at the address that the manifest names, if one was pushed there.
        foreign: Address of an image that others made, to whose code the manifest does not consent; else empty.
        unproven: The source of its files states digests of some that trims has not hashed yet.
    """

    name: str
    key: str
    manifest: Manifest
    artifact: Artifact
    recipe: Mapping[str, Any]
    python: Path | None
    identities: tuple[str, ...]
    checked_at_s: float
    converted: bool
    mount: str = "/"
    epoch: int = 0
    in_place: str | None = None
    why_not: str = ""
    hashed: bool = True
    certain: bool = True
    rests_at_s: float = -math.inf
    builder: Mapping[str, str] = field(default_factory=dict)
    cloud: CloudImage | None = None
    foreign: str = ""
    unproven: bool = False


def text_of(manifest: Manifest) -> str:
    """Return the text of a manifest that the catalog compares; an older daemon's is the same."""
    return json.dumps(manifest, default=_plain, sort_keys=True)


def _plain(part: Any) -> Any:
    if isinstance(part, msgspec.Struct):
        fields = msgspec.structs.asdict(part)
        for name, absent in _YOUNGER:
            if fields.get(name, name) == absent:
                del fields[name]
        if "instances" in fields:
            fields["instances"] = fields["instances"] or 1  # what an older daemon wrote where none were stated
        return fields
    return asdict(part) if is_dataclass(part) and not isinstance(part, type) else str(part)
