"""States that starts begin from: which orders bring them about, and what is seen that is not so."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from trims_predictors.evaluation import tiers
from trims_predictors.evaluation.tiers import Unreachable, bring, verify

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

    async def evict(self, name: str, place: str, *, drain: bool) -> None:
        assert (name, drain) == ("m", True)
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
        return SimpleNamespace(replicas=replicas, manifest=self.manifest, origin=str(self.folder))

    async def status(self) -> Any:
        devices = [SimpleNamespace(place=f"gpu:{number}") for number in range(self.gpus)]
        return SimpleNamespace(stats=SimpleNamespace(devices=devices))


def brought(daemon: Daemon, tier: str) -> tuple[set[str], str]:
    async def work() -> str:
        await bring(daemon, "m", tier)  # type: ignore[arg-type]
        return await verify(daemon, "m", tier)  # type: ignore[arg-type]

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
    with pytest.raises(InUseError):
        brought(Daemon(tmp_path, busy=10_000), "disk")


def test_what_cannot_be_brought_about_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        brought(Daemon(tmp_path), "gpu")
    daemon = Daemon(tmp_path)
    daemon.manifest["artifact"] = {"builder": {"call": "a:b"}, "format": "onnx"}
    with pytest.raises(Unreachable):
        brought(daemon, "file")


def test_another_state_than_wanted_is_seen(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    for tier in ("file", "disk", "gpu"):
        assert asyncio.run(verify(daemon, "m", tier)), tier  # type: ignore[arg-type]
    assert asyncio.run(verify(daemon, "m", "cpu")) == ""  # type: ignore[arg-type]
    daemon.places = {"disk"}
    (tmp_path / "image").read_bytes()
    assert asyncio.run(verify(daemon, "m", "disk")), "its file is in memory"  # type: ignore[arg-type]
