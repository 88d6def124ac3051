"""States that starts begin from: which orders bring them about, and what is seen that is not so."""

from __future__ import annotations

import asyncio
import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from trims_bench.evaluation import page_cache, tiers
from trims_bench.evaluation.tiers import Unreachable, artifact_files, bring, verify

from trims.core.errors import InUseError, ModelNotFoundError

if TYPE_CHECKING:
    from pathlib import Path


class Daemon:
    """Carries out loads and evictions of one model, whose artifact and disk image are files in a folder."""

    def __init__(self, folder: Path, *, gpus: int = 0, busy: int = 0) -> None:
        self.folder, self.busy = folder, busy
        self.places: set[str] = {"cpu", "file"}
        self.gpus = gpus
        self.manifest: dict[str, Any] = {"name": "m", "artifact": {"path": "m.safetensors"}}
        for name in ("m.safetensors", "image"):
            (folder / name).write_bytes(b"x" * 8192)

    async def load(self, name: str, place: str) -> None:
        assert name == "m"
        self.places.add(place)

    async def evict(self, name: str, place: str) -> None:
        assert name == "m"  # and without `drain`, which would refuse readers of others later
        if self.busy:
            self.busy -= 1
            raise InUseError("it is read")
        if place not in self.places:
            raise ModelNotFoundError("it is not there")
        self.places.discard(place)

    async def show(self, name: str) -> Any:
        replicas = [
            SimpleNamespace(place=each, state="sealed", location=str(self.folder / "image"), name=name)
            for each in self.places
        ]
        return SimpleNamespace(
            replicas=replicas, manifest=self.manifest, origin=str(self.folder), files=(), format="safetensors"
        )

    @property
    def files(self) -> list[str]:
        return [str(self.folder / "m.safetensors")]

    async def status(self) -> Any:
        devices = [SimpleNamespace(place=f"gpu:{number}") for number in range(self.gpus)]
        return SimpleNamespace(stats=SimpleNamespace(devices=devices))


def brought(daemon: Daemon, tier: str) -> tuple[set[str], str]:
    async def work() -> str:
        await bring(daemon, "m", tier, daemon.files)  # type: ignore[arg-type]
        return await verify(daemon, "m", tier, daemon.files)  # type: ignore[arg-type]

    wrong = asyncio.run(work())
    return daemon.places, wrong


@pytest.mark.parametrize(
    ("tier", "places"),
    [("file", set()), ("disk", {"disk"}), ("cpu", {"cpu", "file"}), ("gpu", {"cpu", "file", "gpu:0"})],
)
def test_each_state_is_brought_about(tmp_path: Path, tier: str, places: set[str]) -> None:
    found, wrong = brought(Daemon(tmp_path, gpus=1), tier)
    assert found == places
    assert "cached" not in wrong


def test_an_eviction_waits_for_readers_that_are_about_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "_PAUSE_S", 0.0)
    assert brought(Daemon(tmp_path, busy=3), "disk")[0] == {"disk"}
    with pytest.raises(Unreachable):
        brought(Daemon(tmp_path, busy=10_000), "disk")


def test_what_cannot_be_brought_about_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        brought(Daemon(tmp_path), "gpu")
    daemon = Daemon(tmp_path)
    (tmp_path / "m.safetensors").unlink()
    with pytest.raises(Unreachable):
        brought(daemon, "file")


def test_the_framework_alone_finds_the_file_in_memory_or_not(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)

    async def work(tier: str) -> str:
        await bring(daemon, "m", tier, daemon.files, alone=True)  # type: ignore[arg-type]
        return await verify(daemon, "m", tier, daemon.files, alone=True)  # type: ignore[arg-type]

    assert asyncio.run(work("cpu")) == ""
    before = set(daemon.places)
    dropped = asyncio.run(work("file"))
    assert daemon.places == before, "no order is given to the store"
    if page_cache.cached_share(daemon.files) == 0.0:
        assert dropped == ""
        assert asyncio.run(verify(daemon, "m", "cpu", daemon.files, alone=True))  # type: ignore[arg-type]


def test_all_files_of_an_artifact_are_found(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    for name in ("one", "two"):
        save_file({name[0]: np.zeros(2)}, tmp_path / f"{name}.safetensors")
    shown: Any = SimpleNamespace(
        files=(str(tmp_path / "m.safetensors.index.json"),), format="safetensors", origin=str(tmp_path),
        manifest={"name": "m", "artifact": {"path": "m.safetensors.index.json"}},
    )  # fmt: skip
    assert {os.path.basename(each) for each in artifact_files(shown)} == {
        "m.safetensors.index.json", "one.safetensors", "two.safetensors",
    }  # fmt: skip
    shown.files = ()
    assert artifact_files(shown) == []


def test_another_state_than_wanted_is_seen(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    for tier in ("file", "disk", "gpu"):
        assert asyncio.run(verify(daemon, "m", tier, daemon.files)), tier  # type: ignore[arg-type]
    assert asyncio.run(verify(daemon, "m", "cpu", daemon.files)) == ""  # type: ignore[arg-type]
    daemon.places = {"disk"}
    (tmp_path / "image").read_bytes()
    assert asyncio.run(verify(daemon, "m", "disk", daemon.files)), "its file is in memory"  # type: ignore[arg-type]
