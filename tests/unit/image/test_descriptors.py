"""A process without a descriptor left says so, with the remedy: no artifact is bad because of that."""

from __future__ import annotations

import errno
import json
import os
import resource
import struct
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import CapacityError
from trims.formats import plugins
from trims.formats.base import Artifact
from trims.formats.conversion.build import build_artifact
from trims.formats.conversion.child_process import LimitedChild
from trims.formats.conversion.conversion import converter, detect, start_conversion
from trims.image.descriptors import explain_descriptors
from trims.testing.converters import LIMITS, write_plugin
from trims.testing.descriptors import few_descriptors
from trims.tiers import transfer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = r"no descriptor left: this process may have \d+ open files; raise the limit \(`ulimit -n`, LimitNOFILE=\)"


@pytest.fixture
def main(tmp_path: Path) -> Path:
    text = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    return tmp_path / "m.safetensors"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary folder, which must be empty afterwards."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert os.listdir(folder) == []


def test_the_limit_and_the_remedy_are_said_for_process_and_machine() -> None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    own = explain_descriptors(OSError(errno.EMFILE, "Too many open files"))
    assert type(own) is CapacityError
    assert f"may have {soft} open files; raise the limit (`ulimit -n`, LimitNOFILE=) or evict models" in str(own)
    machine = explain_descriptors(OSError(errno.ENFILE, "File table overflow"))
    assert "this machine may have" in str(machine)
    assert machine.retryable  # type: ignore[attr-defined]
    other = OSError(errno.EIO, "Input/output error")
    assert explain_descriptors(other) is other


@pytest.mark.parametrize("format", ["safetensors", "npz", "torch", "onnx", "mxnet"])
def test_an_artifact_is_not_bad_because_no_file_can_be_opened(format: str, tmp_path: Path) -> None:  # noqa: A002
    names = ("m-symbol.json", "m-0000.params") if format == "mxnet" else (f"m.{format}",)
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 100)
    chosen = converter(format)
    with few_descriptors(left=0), pytest.raises(CapacityError, match=WORDS):
        chosen.files(tmp_path / names[0], {"epoch": 0} if format == "mxnet" else {})


def test_detecting_and_planning_say_so_too(main: Path) -> None:
    detect(main)
    artifact = Artifact("safetensors", (main,))
    with few_descriptors(left=0):
        with pytest.raises(CapacityError, match=WORDS):
            detect(main)
        with start_conversion(artifact, limits=LIMITS) as conversion, pytest.raises(CapacityError, match=WORDS):
            conversion.plan()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Popen of Python 3.10 leaks what it opened before it failed")
@pytest.mark.parametrize("left", range(9))
@pytest.mark.usefixtures("temporary")
def test_a_child_that_cannot_be_started_says_so_and_leaves_nothing(left: int) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with few_descriptors(left=left), pytest.raises(CapacityError, match=WORDS):
        LimitedChild("m.npz", python=None, limits=LIMITS)
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("temporary")
def test_a_builder_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    for left in range(6):
        with few_descriptors(left=left), pytest.raises(CapacityError, match=WORDS):
            build_artifact("json:dumps", {}, tmp_path / "made", python=None, limits=LIMITS)
    assert not (tmp_path / "made").exists()


def test_a_child_that_runs_out_itself_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    write_plugin(site, "greedy_converter_of_test", GREEDY, hungry="Converter")
    monkeypatch.syspath_prepend(site)
    plugins._entry_points.cache_clear()
    (tmp_path / "m.hungry").write_bytes(b"x")
    artifact = Artifact("hungry", (tmp_path / "m.hungry",))
    try:
        with start_conversion(artifact, limits=LIMITS) as conversion, pytest.raises(CapacityError, match=WORDS):
            conversion.plan()
    finally:
        plugins._entry_points.cache_clear()
        sys.modules.pop("greedy_converter_of_test", None)


GREEDY = """
import os
class Converter:
    format = "hungry"
    version = 1
    host_specific = False
    def needs_child(self, options): return True
    def frameworks(self, options): return ()
    def claims(self, main, first_bytes): return False
    def files(self, main, options): return (main,)
    def plan(self, artifact):
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
        while True:
            os.open(artifact.files[0], os.O_RDONLY)
"""


def test_a_copy_without_a_descriptor_leaves_explaining_to_the_tier(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(100))
    with (tmp_path / "source").open("rb") as source, (tmp_path / "target").open("w+b") as target:
        with few_descriptors(left=0), pytest.raises(OSError, match="Too many open files") as caught:
            transfer.copy(source.fileno(), target.fileno(), 100)
        assert caught.value.errno == errno.EMFILE
