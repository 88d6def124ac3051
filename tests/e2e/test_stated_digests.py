"""Digests that a manifest states are held against the file, and nothing is served that differs."""

# fault (damage): another sha256 than the manifest states -> `digest_mismatch` with both

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import DigestMismatchError, ManifestError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_client import Session

    from trims.daemon.main import Daemon


def register(daemon: Daemon, path: Path, stated: dict[str, str]) -> None:
    manifest = {"name": "m", "artifact": {"path": str(path), "sha256": stated}}
    daemon.registry.put(manifest, "")


def test_a_file_with_the_stated_sha256_opens(daemon: Daemon, session: Session, checkpoint: Callable[..., Path]) -> None:
    path = checkpoint("m")
    register(daemon, path, {path.name: hashlib.sha256(path.read_bytes()).hexdigest()})
    with session.open("m") as weights:
        assert weights["weight"].size


def test_a_file_with_another_sha256_is_refused_with_both(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    session.open_file(path).close()  # read once without a stated digest: the catalog must not answer for it
    found, stated = hashlib.sha256(path.read_bytes()).hexdigest(), "0" * 64
    register(daemon, path, {path.name: stated})
    with pytest.raises(DigestMismatchError, match=rf"(?s){found}.*{stated}"):
        session.open("m")


def test_a_digest_of_a_file_the_artifact_does_not_have_is_named(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint("m"), {"other.bin": "0" * 64})
    with pytest.raises(ManifestError, match=r"other\.bin"):
        session.open("m")
