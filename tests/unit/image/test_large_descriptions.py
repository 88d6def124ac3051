"""Large descriptions are parsed in a child: the process that serves others never holds its lock for so long."""

# fault (orders): a header of 100,000 tensors -> nothing; parsed in a child

from __future__ import annotations

import json
import logging
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from safetensors_files import FEW, MANY, a_file, an_image, mxnet_model, shards

from trims.core.errors import ArtifactError, ConversionError
from trims.formats.base import Artifact, Limits
from trims.formats.conversion import conversion as conversions
from trims.formats.conversion.conversion import detect, start_conversion
from trims.image.peek import PARSE_HERE_BYTES
from trims.testing.converters import LIMITS, convert
from trims.tiers import transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


KINDS = {"a file": a_file, "shards": shards, "an image": an_image, "an MXNet model": mxnet_model}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def make(request: pytest.FixtureRequest) -> Callable[[Path, int], Path]:
    found: Callable[[Path, int], Path] = request.param
    return found


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Lengths of all JSON that this process reads or writes from now on, and of all tables of tensors."""
    found = [0]
    loads, dumps = json.loads, json.dumps

    def counted_loads(text: Any, **options: Any) -> Any:
        found.append(len(text))
        return loads(text, **options)

    def counted_dumps(value: Any, **options: Any) -> str:
        text = dumps(value, **options)
        found.append(len(text))
        return text

    with monkeypatch.context() as patched:
        patched.setattr(json, "loads", counted_loads)
        patched.setattr(json, "dumps", counted_dumps)
        yield found


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*anything: object, **more: object) -> None:
        pytest.fail("a child was started")

    monkeypatch.setattr(subprocess, "Popen", refuses)


def taken_in(main: Path) -> bytes:
    """Take in an artifact with all steps of a daemon, up to the checked image."""
    chosen = detect(main)
    artifact = Artifact(chosen.format, chosen.files(main, {}), {})
    with start_conversion(artifact, limits=LIMITS) as conversion:
        nbytes = conversion.plan()
        fd = os.memfd_create("image")
        try:
            os.truncate(fd, nbytes)
            conversion.write(fd)
            transfer.check_bytes(fd, nbytes)
            return os.pread(fd, nbytes, 0)
        finally:
            os.close(fd)


def test_nothing_large_is_parsed_in_the_process_that_serves_others(
    make: Callable[[Path, int], Path], tmp_path: Path, lengths: list[int]
) -> None:
    main = make(tmp_path, MANY)
    lengths.clear()
    assert len(taken_in(main)) > PARSE_HERE_BYTES
    assert max(lengths) <= PARSE_HERE_BYTES


@pytest.mark.usefixtures("no_child")
def test_a_small_artifact_is_converted_and_checked_without_a_child(
    make: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    assert len(taken_in(make(tmp_path, FEW))) > 0


def test_a_child_makes_the_same_image_as_this_process(
    make: Callable[[Path, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = make(tmp_path, MANY)
    in_child = taken_in(main)
    monkeypatch.setattr(conversions, "PARSE_HERE_BYTES", 1 << 40)
    assert taken_in(main) == in_child


def test_a_large_header_that_lies_is_told_as_a_small_one_is(tmp_path: Path) -> None:
    main = a_file(tmp_path, MANY)
    data = bytearray(main.read_bytes())
    at = data.index(b'"F32"')
    data[at : at + 5] = b'"F99"'
    main.write_bytes(data)
    artifact = Artifact("safetensors", (main,), {})
    with (
        start_conversion(artifact, limits=LIMITS) as conversion,
        pytest.raises(ArtifactError, match=r"m\.safetensors: tensor .* has the unsupported dtype 'F99'"),
    ):
        conversion.plan()


def test_what_a_child_warns_of_is_logged_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    main = an_image(tmp_path, MANY, "torch-skeleton")
    with caplog.at_level(logging.WARNING):
        convert(Artifact("safetensors", (main,), {}), tmp_path / "image")
    assert "torch-skeleton was left out" in caplog.text


def test_a_large_conversion_keeps_to_its_limits_and_says_why_it_was_stopped(tmp_path: Path) -> None:
    artifact = Artifact("safetensors", (a_file(tmp_path, MANY),), {})
    with (
        start_conversion(artifact, limits=Limits(time_s=0.01)) as conversion,
        pytest.raises(ConversionError, match="not done within the time limit"),
    ):
        conversion.plan()
    with start_conversion(artifact, limits=LIMITS) as conversion:
        conversion.plan()
        conversion.cancel("the daemon is shutting down")
        with pytest.raises(ConversionError, match="its conversion was stopped: the daemon is shutting down"):
            conversion.write(0)


# -- checking images -------------------------------------------------------------------------------------------------
