"""A driver by its name: NVIDIA's, the fake, or an error that says what is missing and what there is."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import NotSupportedError
from trims.memory.cuda.api import Device
from trims.memory.cuda.connect import connect, stand_in
from trims.testing.fake_cuda import FakeCuda, make_devices

if TYPE_CHECKING:
    from pathlib import Path


def test_the_fake_is_found_by_its_name_and_says_how_to_find_it_again(folder: Path) -> None:
    kind = make_devices(folder, [Device("GPU-1", "Fake", 1 << 20)])
    cuda = connect(kind)
    assert isinstance(cuda, FakeCuda)
    assert cuda.kind == kind
    assert [device.uuid for device in connect(cuda.kind).devices()] == ["GPU-1"]


def test_a_folder_may_have_a_colon_in_its_name(folder: Path) -> None:
    odd = folder / "a:b"
    odd.mkdir()
    assert stand_in(make_devices(odd, [])).devices() == []


@pytest.mark.parametrize("kind", ["nonsense", "nonsense:/folder", ""])
def test_an_unknown_driver_is_answered_with_those_there_are(kind: str) -> None:
    name = kind.partition(":")[0]
    with pytest.raises(NotSupportedError, match=rf"there is no CUDA driver {name!r}; known are driver, .*fake"):
        connect(kind)


def test_a_stand_in_of_another_package_is_given_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    made = EntryPoint("mine", "builtins:list", "trims.cuda")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [made] if group == "trims.cuda" else [])
    assert stand_in("mine:ab") == ["a", "b"]


def test_without_the_package_the_real_driver_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "trims.memory.cuda.bindings", raising=False)
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NotSupportedError, match=r"cuda-bindings is not installed .*; pip install .*\[gpu\]'"):
        connect("driver")
