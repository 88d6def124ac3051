"""Files of a commit of the Hugging Face hub: as its API and the cache of its clients list them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError
from trims.sources.base import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Form of a cached listing, the only one there is so far.
_TREE_FORMAT = 1
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_ETAG = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a commit, as the hub lists it.

    Attributes:
        blob_id: Git's object: of the file's bytes, or of a pointer to them if `sha256` is stated.
        sha256: Digest of the bytes of a file in large-file storage; empty for others.
        xet_hash: Name of the bytes in the hub's chunked storage; empty for others.
    """

    nbytes: int
    blob_id: str
    sha256: str = ""
    xet_hash: str = ""

    def remote(self, name: str) -> RemoteFile:
        """Return the file under a name, with the checksum that its listing states."""
        checksums = {"sha256": self.sha256} if self.sha256 else {} if self.xet_hash else {"git-sha1": self.blob_id}
        return RemoteFile(name, self.nbytes, self.sha256 or self.blob_id, checksums)

    @classmethod
    def parse(cls, name: str, size: object, blob_id: object, sha256: object = None, xet_hash: object = None) -> HubFile:
        """Check what a listing says about a file. Raises ArtifactError, which names the file."""
        check_name(name)
        if type(size) is not int or size < 0 or not (isinstance(blob_id, str) and _ETAG.match(blob_id)):
            raise ArtifactError(f"the listing's entry for {name!r:.200} has no length or no object of git")
        if sha256 is not None and not (isinstance(sha256, str) and _SHA256.match(sha256)):
            raise ArtifactError(f"the listing's entry for {name!r:.200} states a sha256 that is none: {sha256!r:.100}")
        known = isinstance(xet_hash, str) and _SHA256.match(xet_hash)  # the hub's client drops a tree with another one
        return cls(size, blob_id, sha256 or "", str(xet_hash) if known else "")


def check_name(name: str) -> None:
    """Raise ArtifactError for a path of a listing that is not plainly below the folder of its snapshot."""
    parts = name.replace("\\", "/").split("/")
    if not name or name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ArtifactError(f"the listing has a file {name!r:.200}, which leaves its folder: it is not fetched")


def is_commit(revision: str) -> bool:
    """Return whether a revision is the full name of a commit, which never moves."""
    return _COMMIT.match(revision) is not None


def is_etag(text: str) -> bool:
    """Return whether a text is the name of a blob: a sha256, or a sha1 of git."""
    return _ETAG.match(text) is not None


def parse_tree(content: bytes) -> dict[str, HubFile] | None:
    """Read a cached listing; return None for one of a newer client, or a half-written one. Raises ArtifactError."""
    try:
        data = json.loads(content)
        return _parsed(data["files"]) if data["format_version"] == _TREE_FORMAT else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _parsed(files: Mapping[str, Any]) -> dict[str, HubFile]:
    return {
        name: HubFile.parse(
            name,
            each["lfs_size"] if each.get("lfs_sha256") else each["size"],
            each["blob_id"],
            each.get("lfs_sha256"),
            each.get("xet_hash"),
        )
        for name, each in files.items()
    }


def tree_text(files: Mapping[str, HubFile]) -> str:
    """Write a listing in the form that the hub's client reads."""
    rows = {name: _row(files[name]) for name in sorted(files)}
    return json.dumps({"format_version": _TREE_FORMAT, "files": rows}, indent=1)


def _row(file: HubFile) -> dict[str, Any]:
    row: dict[str, Any] = {"size": file.nbytes, "blob_id": file.blob_id}
    if file.sha256:
        row |= {"lfs_sha256": file.sha256, "lfs_size": file.nbytes}
    return row | ({"xet_hash": file.xet_hash} if file.xet_hash else {})


def found_file(name: str, path: Path) -> RemoteFile:
    """Describe a file of a snapshot: a blob's name is its checksum."""
    version = Path(os.readlink(path)).name if path.is_symlink() else ""
    if not _ETAG.match(version):
        version = ""
    kind = "sha256" if _SHA256.match(version) else "git-sha1"
    try:
        nbytes = path.stat().st_size
    except OSError:
        nbytes = 0
    return RemoteFile(name, nbytes, version, {kind: version} if version else {})
