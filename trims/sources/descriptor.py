"""Descriptions of pushed images: a small JSON file beside the image, under the address that the model was pushed to.

`PREFIX/trims.json` says what the image is; `PREFIX/KEY.DIGEST.safetensors` has its bytes. The image is written first,
and never changes under its name, so that a description always has its image. Versions are explicit: another daemon
refuses a description of a later format.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError, NotSupportedError
from trims.manifests.addresses import path_of, query_of, scheme_of
from trims.sources.base import CHECKSUMS

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "trims.json"
MOST_BYTES = 4 << 20
FORMAT = "trims-image"
VERSION = 1
_HEX = re.compile(r"[0-9a-f]{64}\Z")
_CRC64 = re.compile(r"[0-9a-f]{16}\Z")
_MOST_BYTES = 1 << 50
_MOST_COST_S = 1e9
_FILE = re.compile(r"[A-Za-z0-9._-]{1,255}\Z")
_WITH_DESCRIPTIONS = ("http", "https", "s3", "gs", "az", "abfs", "abfss")
#: Endings of files: an address with one of them names the file itself.
_ENDING = re.compile(r"\.(safetensors|bin|pt|pth|ckpt|onnx|npz|npy|json|params|yaml|yml)\Z")


@dataclass(frozen=True)
class ImageDescription:
    """A pushed image.

    Attributes:
        name: Name of the model, as it was pushed.
        digest: blake3 of its bytes, in hex.
        checksums: Checksums of the bytes: at least `crc64nvme`.
        format: Format of the artifact that it was made from.
        recipe: What besides the artifact's bytes decided it.
        manifest: The fields of the model's manifest that hold on any machine.
        signature: Inputs and outputs, as the catalog keeps them; empty if unknown.
        cost_s: Seconds that making it took.
    """

    name: str
    key: str
    digest: str
    nbytes: int
    checksums: Mapping[str, str]
    file: str
    format: str
    recipe: Mapping[str, Any]
    manifest: Mapping[str, Any] = field(default_factory=dict)
    signature: str = ""
    cost_s: float = 0.0

    def written(self, stored_as: str = "") -> bytes:
        """Return it as the file's bytes.

        Args:
            stored_as: Version that the store gave the image (`RemoteFile.version`), for the next push: it says what
                lies there, not what the image is.
        """
        stored = {"stored_as": stored_as} if stored_as else {}
        return json.dumps(
            {"kind": FORMAT, "format_version": VERSION, **asdict(self), **stored}, indent=1, sort_keys=True
        ).encode()


def address_of(address: str) -> str | None:
    """Return where the description would lie if an address is that of a pushed image; None if it can be none."""
    path = path_of(address)
    if scheme_of(address) not in _WITH_DESCRIPTIONS or query_of(address):
        return None
    if path.rpartition("/")[2] == NAME:
        return address
    return None if _ENDING.search(path) else f"{address.rstrip('/')}/{NAME}"


def is_guess(address: str) -> bool:
    """Return whether an address may as well be that of a file: a server answers what it likes for a name below one."""
    path = path_of(address)
    return scheme_of(address) in ("http", "https") and not path.endswith("/") and path.rpartition("/")[2] != NAME


def image_address(address: str, file: str) -> str:
    """Return the address of an image, from that of its model."""
    return f"{str(address_of(address)).rpartition('/')[0]}/{file}"


def parse(data: bytes, where: str) -> dict[str, Any]:
    """Return a description's fields, checked. Raises ArtifactError, NotSupportedError for one of a later format."""
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where} is no description of an image: {error}") from error
    if not isinstance(raw, dict) or raw.get("kind") != FORMAT:
        raise ArtifactError(f"{where} is no description of an image: its `kind` is not {FORMAT!r}")
    if raw.get("format_version") != VERSION:
        raise NotSupportedError(
            f"{where} has the format {raw.get('format_version')!r:.40}, and this trims reads {VERSION}; update trims"
        )
    fields = {name: raw[name] for name in ImageDescription.__dataclass_fields__ if name in raw}
    wrong = wrong_fields(fields)
    if wrong:
        raise ArtifactError(f"{where} is no description of an image: {wrong}")
    return fields


def stored_as(data: bytes) -> str:
    """Return the version that the store gave the image of a description that `parse` takes; empty if it has none."""
    stated = json.loads(data).get("stored_as", "")
    return stated if isinstance(stated, str) else ""


def wrong_fields(fields: Mapping[str, Any]) -> str:
    """Return what is wrong with a description's fields, for people; empty if nothing is."""
    kinds = {"name": str, "key": str, "digest": str, "nbytes": int, "checksums": dict, "file": str, "format": str,
             "recipe": dict, "manifest": dict, "signature": str}  # fmt: skip
    for name, kind in kinds.items():
        if type(fields.get(name)) is not kind:
            return f"{name} is no {kind.__name__}"
    if not (_HEX.match(fields["key"]) and _HEX.match(fields["digest"])):
        return "key or digest is no 64 hexadecimal digits"
    if fields["nbytes"] < 1 or not _FILE.match(fields["file"]):
        return "its length or its file is none"
    if fields["nbytes"] > _MOST_BYTES or not _is_cost(fields.get("cost_s", 0.0)):
        return "its length or its cost is out of range"
    if type(fields["recipe"].get("format", "")) is not str:
        return "its recipe names a format that is none"
    return _wrong_checksums(fields["checksums"])


def _is_cost(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MOST_COST_S  # which no NaN is


def _wrong_checksums(stated: Mapping[str, Any]) -> str:
    if not _CRC64.match(str(stated.get("crc64nvme"))):
        return "it states no crc64nvme"
    wrong = [name for name, digest in stated.items() if name not in CHECKSUMS or not isinstance(digest, str)]
    return f"it states a checksum {wrong[0]!r:.40} that is none" if wrong else ""
