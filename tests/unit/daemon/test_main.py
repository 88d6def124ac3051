"""Putting a daemon together: its folders' locks, its segments and policies, and a start that fails."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from looking import WAIT_S
from policies import Alphabetical, order_of

import trims.daemon.main as module
from trims.core.errors import ConfigError
from trims.daemon.config import Config, build_config
from trims.daemon.folder_lock import FolderLock
from trims.daemon.main import Daemon, load_policy, segment_driver, shm_prefix
from trims.memory.memfd import SealedMemfd
from trims.memory.shm import PosixShm
from trims.testing.policies import usage
from trims.testing.tiers import an_image, put
from trims.tiers.cpu import CpuTier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_two_state_folders_have_segments_of_different_names(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    prefixes = {name: shm_prefix(tmp_path / name) for name in ("a", "b", "link")}
    assert prefixes["a"] == prefixes["link"] != prefixes["b"]
    assert all(prefix.startswith("trims-") for prefix in prefixes.values())


def config_of(folder: Path, **more: object) -> Config:
    settings = {"runtime_dir": folder / "run", "state_dir": folder / "state", "gpus": "none"}
    return build_config({**settings, "cpu_capacity_bytes": "1MiB", **more}, environment={})


def test_segments_left_from_another_kind_of_memory_are_removed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(folder)
    driver = segment_driver(config)
    assert isinstance(driver, PosixShm)
    tier = CpuTier(driver, 1 << 20)
    put(tier, an_image())
    tier.close()
    assert isinstance(segment_driver(config), PosixShm)
    assert len(list(driver.names())) == 1
    assert isinstance(segment_driver(config_of(folder, cpu_memory="memfd")), SealedMemfd)
    assert list(driver.names()) == []
    assert "is removed: cpu_memory is memfd now, no client would ever use it" in caplog.text


@pytest.mark.parametrize("part", ["gpu_tiers", "build_store", "ControlDoor"])
def test_a_daemon_that_cannot_start_leaves_nothing_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ConfigError(f"{part} cannot be made")

    with monkeypatch.context() as patched:
        patched.setattr(module, part, fails)
        with pytest.raises(ConfigError, match=f"{part} cannot be made"):
            Daemon(config_of(folder)).start()
    daemon = Daemon(config_of(folder))
    daemon.start()
    daemon.stop()


def test_a_daemon_that_is_asked_to_end_purges_if_one_request_said_so(
    folder: Path, checkpoint: Callable[..., Path]
) -> None:
    daemon = Daemon(config_of(folder))
    daemon.start()
    daemon.store.load(f"file:{checkpoint('m')}").result(WAIT_S)
    named = PosixShm(shm_prefix(folder / "state"))
    assert len(list(named.names())) == 1
    daemon.ask_to_end(purge=True)
    daemon.ask_to_end()
    daemon.wait()
    daemon.stop()
    assert daemon.ended
    assert list(named.names()) == []
    assert sorted(os.listdir(folder / "run")) == ["attach", "lock"]
    assert os.listdir(folder / "run" / "attach") == []
    FolderLock(folder / "state", "the state folder").release()


ENDED_WHILE_IT_LOADS_CONVERTERS = """
import os, signal, sys
import trims.daemon.main as module
from trims.daemon.config import build_config
module.load_all = lambda: os.kill(os.getpid(), signal.SIGTERM)
module.serve(build_config({"runtime_dir": sys.argv[1], "state_dir": sys.argv[2], "gpus": "none"}))
"""


def test_a_daemon_that_is_asked_to_end_as_soon_as_it_answers_ends_in_order(folder: Path) -> None:
    command = [sys.executable, "-c", ENDED_WHILE_IT_LOADS_CONVERTERS, str(folder / "run"), str(folder / "state")]
    done = subprocess.run(command, timeout=WAIT_S, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(folder / "run")) == ["attach", "lock"]
    assert os.listdir(folder / "run" / "attach") == []


def test_an_unknown_policy_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'random'; known are fifo, gdsf, lfu, lru"):
        load_policy("random")


class NotAPolicy:
    pass


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*, group: str) -> list[importlib.metadata.EntryPoint]:
        names = {"alphabetical": "Alphabetical", "broken": "NotAPolicy"}
        return [importlib.metadata.EntryPoint(name, f"{__name__}:{value}", group) for name, value in names.items()]

    monkeypatch.setattr(importlib.metadata, "entry_points", found)
    loaded = {"Alphabetical": Alphabetical, "NotAPolicy": NotAPolicy}
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda entry: loaded[entry.attr])


@pytest.mark.usefixtures("plugins")
def test_a_policy_of_a_plugin_is_loaded_by_its_name() -> None:
    assert order_of(load_policy("alphabetical"), [usage("b"), usage("a")]) == ["a", "b"]


@pytest.mark.usefixtures("plugins")
def test_a_plugin_that_is_no_policy_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"NotAPolicy is not an eviction policy"):
        load_policy("broken")
