"""Files as they are: an image with one tensor, which no file claims, at the identity that is asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from trims_client.weights import Weights

from trims.core.errors import ArtifactChangedError, ArtifactError
from trims.formats.base import Artifact
from trims.formats.conversion.conversion import converter
from trims.formats.verbatim import BYTES
from trims.store.catalog import identity_of
from trims.testing.converters import convert

if TYPE_CHECKING:
    from pathlib import Path

    from trims.daemon.main import Daemon

DATA = bytes(range(256)) * 40 + b"end"


def test_an_image_has_the_files_bytes(tmp_path: Path) -> None:
    (path := tmp_path / "any.thing").write_bytes(DATA)
    found = converter(BYTES)
    assert not found.claims(path, DATA)
    artifact = Artifact(BYTES, found.files(path, {}), {})
    with Weights.map_file(convert(artifact, tmp_path / "image")) as weights:
        assert (list(weights), weights[BYTES].tobytes()) == ([BYTES], DATA)
    (tensor,) = found.contents(artifact).sources  # type: ignore[attr-defined]
    assert (tensor.name, tensor.shape, tensor.span.offset) == (BYTES, (len(DATA),), 0)


def test_options_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        converter(BYTES).files(tmp_path / "none", {})
    (tmp_path / "f").write_bytes(DATA)
    with pytest.raises(ArtifactError):
        converter(BYTES).files(tmp_path / "f", {"module": "m:f"})


def test_a_file_is_served_at_the_identity_that_is_asked_for_alone(daemon: Daemon, tmp_path: Path) -> None:
    (path := tmp_path / "any.thing").write_bytes(DATA)
    name = f"file:bytes:{identity_of(path)}:{path}"
    assert daemon.store.load(name).result(60)
    os.utime(path, ns=(1, 1))
    other = name.replace(":bytes:", ":bytes:1")
    for each in (other, f"file:bytes:{identity_of(path)}0:{path}"):
        with pytest.raises(ArtifactChangedError):
            daemon.store.load(each).result(60)
    assert daemon.store.load(f"file:bytes:{identity_of(path)}:{path}").result(60)
