"""Converting without a daemon: an artifact, a manifest or a registered model becomes an image behind a descriptor."""

from __future__ import annotations

import json
import os
import tempfile
from typing import TYPE_CHECKING

import pytest
from safetensors.numpy import load_file

from trims.control.convert import convert, main
from trims.core.errors import ArtifactError, ModelNotFoundError
from trims.image.check import check_image
from trims.image.reader import ImageView
from trims.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def scratch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """State in the test's folder, and a temporary folder that is empty afterwards."""
    monkeypatch.setenv("TRIMS_STATE_DIR", str(folder / "state"))
    temporary = folder / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert os.listdir(temporary) == []


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("image")
    yield made
    os.close(made)


def image_in(fd: int) -> ImageView:
    view = ImageView(memoryview(os.pread(fd, os.fstat(fd).st_size, 0)))
    check_image(view)
    return view


def test_an_artifact_a_manifest_and_a_registered_model_give_the_same_image(
    folder: Path, checkpoint: Callable[..., Path], fd: int
) -> None:
    artifact = checkpoint("m")
    (folder / "m.yaml").write_text(json.dumps({"name": "m", "artifact": {"path": artifact.name}}))
    registry = SqliteRegistry(folder / "state" / "registry.db")
    registry.put({"name": "bert", "artifact": {"path": str(artifact)}}, "")
    registry.close()
    images = []
    for source in (str(artifact), str(folder / "m.yaml"), "bert"):
        os.ftruncate(fd, 0)
        assert convert(source, fd) == os.fstat(fd).st_size
        images.append(os.pread(fd, os.fstat(fd).st_size, 0))
    assert images[0] == images[1] == images[2]
    view = image_in(fd)
    for name, values in load_file(artifact).items():
        assert bytes(view.tensor(name)) == values.tobytes()


def test_a_source_that_is_unknown_or_broken_is_an_error_of_the_tree(folder: Path, fd: int) -> None:
    with pytest.raises(ModelNotFoundError, match="no model 'absent'"):
        convert("absent", fd)
    (folder / "broken.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ArtifactError, match=r"broken\.safetensors"):
        convert(str(folder / "broken.safetensors"), fd)
    assert os.fstat(fd).st_size == 0


def test_as_a_process_it_says_what_went_wrong_and_fails(
    folder: Path, checkpoint: Callable[..., Path], fd: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(checkpoint("m")), str(fd)]) == 0
    assert set(image_in(fd).layout.tensors) == {"weight", "step"}
    assert capsys.readouterr() == ("", "")
    assert main(["absent", str(fd)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("no model 'absent'")


def test_a_file_that_cannot_be_written_is_told_in_one_line(
    checkpoint: Callable[..., Path], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "target").write_bytes(b"")
    with (folder / "target").open("rb") as target:
        assert main([str(checkpoint("m")), str(target.fileno())]) == 1
    assert capsys.readouterr().err.count("\n") == 1
