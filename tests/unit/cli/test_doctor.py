"""`trims doctor`: each examination says what it found, with the remedy, and none keeps the others from speaking."""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING

import pytest
from made_environments import install, put
from own_parts import declare

from trims.cli import doctor
from trims.core.errors import ConfigError
from trims.core.units import format_bytes
from trims.formats import plugins
from trims.testing.converters import write_plugin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.cli.finding import Finding
    from trims.daemon.main import Daemon


@pytest.fixture(autouse=True)
def own_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, name in (("STATE_DIR", "state"), ("RUNTIME_DIR", "run")):
        monkeypatch.setenv(f"TRIMS_{setting}", str(folder / name))


def test_an_examination_that_fails_is_a_finding_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Iterator[Finding]:
        raise ConfigError("segment_dir /x cannot be used")

    def breaks() -> Iterator[Finding]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor, "_shared_memory", fails)
    monkeypatch.setattr(doctor, "_frameworks", breaks)
    found = doctor.examine(None)
    bad = {each.what for each in found if each.verdict == "bad"}
    assert bad >= {"segment_dir /x cannot be used", "[Errno 13] Permission denied"}
    assert any(each.what.startswith("runtime folder") for each in found)


def test_this_python_and_the_memory_of_its_segments_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (python,) = doctor._python()
    assert sys.executable in python.what
    shared = list(doctor._shared_memory())
    assert shared[0].what.startswith("/dev/shm: ")
    monkeypatch.setenv("TRIMS_CPU_MEMORY", "memfd")
    (sealed,) = doctor._shared_memory()
    assert (sealed.verdict, "sealed memfds" in sealed.what) == ("ok", True)


def test_parts_of_other_packages_are_named_and_one_that_is_not_installed_is_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert list(doctor._plugins()) == []
    monkeypatch.setenv("TRIMS_REGISTRY", "memory:x")
    declare(monkeypatch, "trims.registries", memory="MemoryRegistry")
    found = [(each.verdict, each.what) for each in doctor.examine(None)]
    assert ("ok", "registry memory:x: own_parts:MemoryRegistry") in found
    monkeypatch.setenv("TRIMS_REGISTRY", "several:x")
    found = [(each.verdict, each.what) for each in doctor.examine(None)]
    (unknown,) = (what for verdict, what in found if verdict == "bad" and "registry" in what)
    assert unknown.startswith(
        "there is no registry 'several'; known are memory, sqlite (a package adds one as an entry point"
    )


def test_shared_memory_of_a_container_that_was_told_nothing_is_bad_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_SMALL_SHM_BYTES", 1 << 60)
    small = next(doctor._shared_memory())
    assert small.verdict == "bad"
    assert "docker run --shm-size" in small.advice
    held = os.statvfs("/dev/shm")
    assert f"of {format_bytes(held.f_blocks * held.f_frsize)}; " in small.what


@pytest.mark.parametrize(("hard", "verdict"), [(1023, "bad"), (1024, "ok")])
def test_a_limit_of_descriptors_that_cannot_be_raised_is_bad(
    monkeypatch: pytest.MonkeyPatch, hard: int, verdict: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (500, hard))
    (finding,) = doctor._descriptors()
    assert finding.verdict == verdict
    assert finding.what == f"open files: 500 allowed, {hard} at most"
    assert bool(finding.advice) is (verdict == "bad")


def test_a_folder_of_another_user_is_bad_and_one_that_is_not_there_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "state").mkdir()
    runtime, state, capacity = doctor._folders()
    assert runtime.what == f"runtime folder: {folder / 'run'} (not made yet)"
    assert (state.verdict, state.what) == ("ok", f"state folder: {folder / 'state'}")
    assert capacity.what.startswith("capacity: ")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    runtime, state, _ = doctor._folders()
    assert runtime.verdict == "ok"
    assert (state.verdict, state.advice) == ("bad", "choose another folder")
    assert f"belongs to user {os.getuid()}" in state.what


def test_a_daemon_of_another_version_is_bad_with_the_remedy(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime_dir = str(daemon.config.runtime_dir)
    (well,) = doctor.examine_daemon(runtime_dir)
    assert well.what == f"daemon serving: process {os.getpid()}, state in {daemon.config.state_dir}"
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99.0")
    _, other = doctor.examine_daemon(runtime_dir)
    assert (other.verdict, "this is 99.0" in other.what) == ("bad", True)
    assert "restart it" in other.advice


def test_a_daemon_that_is_away_is_a_note_with_the_command(folder: Path) -> None:
    (away,) = doctor.examine_daemon(str(folder / "nowhere"))
    assert (away.verdict, away.advice) == ("note", "trims serve")
    assert str(folder / "nowhere") in away.what


def test_a_framework_that_its_environment_lacks_is_bad(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text("")
    (folder / "pyvenv.cfg").write_text("home = /usr\n")
    monkeypatch.setenv("TRIMS_ENVIRONMENTS", f"mxnet={folder / 'bin' / 'python'}")
    found = {each.what.split()[0]: each for each in doctor._frameworks()}
    assert (found["mxnet"].verdict, found["mxnet"].advice) == ("bad", "install mxnet there")
    assert found["mxnet"].what == f"mxnet is missing in {folder / 'bin' / 'python'}"
    assert found["numpy"].verdict == "ok"
    monkeypatch.setenv("TRIMS_ENVIRONMENTS", "")
    (without,) = [each for each in doctor._frameworks() if each.what.startswith("mxnet")]
    assert (without.verdict, without.advice[:32]) == ("note", "trims env create mxnet==1.9.1, i")


def test_made_environments_are_told_and_broken_ones_are_bad(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMS_ENVIRONMENTS_DIR", str(folder))
    monkeypatch.setenv("TRIMS_ENVIRONMENTS", "")
    well, gone, changed = (put(folder, n, mxnet=f"{n}.0") for n in (4, 3, 2))
    spoilt = put(folder, name="spoilt", numpy="1.0")
    gone.python.unlink()
    install(changed, "other", "1.0")
    (spoilt.folder / "environment.json").write_text("{}")
    found = list(doctor._environments())
    assert [each.verdict for each in found] == ["ok", "bad", "bad", "bad"]
    assert found[0].what == f"environment {well.name}: mxnet 4.0"
    assert found[1].what == f"environment {gone.name}: its interpreter {gone.python} is gone"
    assert "other 1.0 was installed after it was made" in found[2].what
    assert f"trims env create --lock {changed.lock_file}" in found[2].advice
    assert found[3].advice == "trims env rm --force spoilt"
    assert not [each for each in doctor._frameworks() if "mxnet" in each.what]


def test_plugins_are_listed_with_their_packages_and_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    plugins._entry_points.cache_clear()
    write_plugin(tmp_path, "plugin_of_doctor_a", "class Converter: pass", odd="Converter")
    write_plugin(tmp_path, "plugin_of_doctor_b", "1/0", failing="Converter")
    try:
        found = {each.what: each.verdict for each in doctor._plugins()}
    finally:
        plugins._entry_points.cache_clear()
    assert found["trims.formats plug-in odd: plugin_of_doctor_a:Converter of plugin_of_doctor_a 1.0"] == "ok"
    (failing,) = (what for what in found if "failing" in what)
    assert (found[failing], "ZeroDivisionError" in failing, "plugin_of_doctor_b 1.0" in failing) == ("bad", True, True)
    (no_converter,) = (what for what in found if "'odd'" in what)
    assert (found[no_converter], "is not a Converter" in no_converter) == ("bad", True)
