"""Settings: which source beats which, and what is said of values that cannot be used."""

from __future__ import annotations

import shutil
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from trims.cli import daemon_commands
from trims.core.errors import ConfigError
from trims.daemon import config as config_module
from trims.daemon.config import Config, build_config, unknown_variables
from trims.environments.environment_store import default_folder
from trims.memory.available import allowed_bytes
from trims.plugins import Choice
from trims.trace.levels import Level


@pytest.fixture(autouse=True)
def a_still_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the disk say the same at each question: other programs write to it between two of them."""
    found = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: found)


def build(environment: dict[str, str] | None = None, file: Path | None = None, **flags: object) -> Config:
    return build_config(flags, environment=environment or {}, file=file)


def test_flags_beat_the_environment_beats_the_file_beats_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "trims.yaml"
    file.write_text("{workers: 11, converters: 12, cpu_policy: gdsf}")
    config = build({"TRIMS_WORKERS": "21", "TRIMS_CONVERTERS": "22"}, file, workers="31", converters=None)
    assert (config.workers, config.converters, config.cpu_policy, config.disk_policy) == (31, 22, "gdsf", "lru")


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    assert build(file=tmp_path / "empty.yaml") == build()


@pytest.mark.parametrize("text", ["[1, 2]", "{1: 2}", "a: [", "text"])
def test_a_file_that_is_no_mapping_of_settings_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        build(file=tmp_path / "bad.yaml")


def test_an_unknown_setting_is_named_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "typo.yaml").write_text("worker: 3")
    with pytest.raises(ConfigError, match=r"unknown setting 'worker'; did you mean 'workers'\? known are .*workers"):
        build(file=tmp_path / "typo.yaml")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_capacity_bytes", "plenty"),
        ("cpu_capacity_bytes", "-1"),
        ("cpu_capacity_bytes", -1),
        ("cpu_capacity_bytes", "0"),
        ("disk_capacity_bytes", "5 parsecs"),
        ("keep_alive_s", "soon"),
        ("keep_alive_s", "-1"),
        ("keep_alive_s", "nan"),
        ("keep_alive_s", "inf"),
        ("registry", ""),
        ("registry", ":/path"),
        ("cpu_memory", "ram"),
        ("environments", "mxnet=/no/such/python"),
        ("environments", "mxnet"),
        ("converter_memory_bytes", "0"),
        ("converter_time_s", "0"),
        ("converter_time_s", "nan"),
        ("converter_time_s", "never"),
        ("converters", "0"),
        ("workers", "2.5"),
        ("workers", "-3"),
        ("socket_mode", "rw-"),
        ("socket_mode", "1777"),
        ("socket_mode", "-1"),
        ("max_sessions", "0"),
        ("grpc_ping_s", "-1"),
        ("grpc_ping_s", "inf"),
        ("always_hash", "sometimes"),
        ("trust", "blind"),
        ("prove", "never"),
        ("verify", "perhaps"),
        ("log_level", "loud"),
        ("runtime_dir", "/" + "x" * 120),
    ],
)
def test_a_value_that_cannot_be_used_is_named_wherever_it_comes_from(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        build(**{name: value})
    with pytest.raises(ConfigError, match=name):
        build({f"TRIMS_{name.upper()}": str(value)})


def test_every_setting_can_come_from_the_environment() -> None:
    given = {
        "runtime_dir": "/r", "state_dir": "/s", "cpu_capacity_bytes": "2GiB", "disk_capacity_bytes": "3 GB",
        "registry": "git:/m:x",
        "cpu_policy": "lfu", "disk_policy": "fifo", "keep_alive_s": "1.5", "cpu_memory": "SHM",
        "segment_dir": "/dev/shm", "large_pages": "no", "gpus": "GPU-1,GPU-2", "gpu_driver": "ipc", "gpu_share": "0.5",
        "gpu_reserve_bytes": "2GiB", "gpu_rest_s": "3", "gpu_verify": "no", "gpu_policy": "gdsf", "cuda": "fake:/f",
        "environments": f"mxnet={sys.executable},other={sys.executable}", "environments_dir": "/e",
        "converter_memory_bytes": "1MiB", "converter_time_s": "7", "behind_bytes_per_s": "1MiB",
        "converters": "3", "workers": "5", "socket_mode": "660", "verify": "yes",
        "trace": "yes", "trace_level": "System",
        "tenants": "/t.yaml", "max_sessions": "77", "grpc_ping_s": "2.5", "template_capacity_bytes": "1GiB",
        "loaders": "no",
        "download_capacity_bytes": "1GiB", "fetch_connections": "3", "fetch_bytes_per_s": "1MiB",
        "fetch_patience_s": "9", "allow_hosts": "models.lan, 10.0.0.0/8", "always_hash": "yes", "trust": "verified",
        "fetch_headers": "/h", "prove": "First", "endpoint": "Yes", "endpoint_flags": "--port 9000",
        "log_level": "DEBUG", "log_format": "JSON",
    }  # fmt: skip
    assert set(given) == {field.name for field in fields(Config)}
    config = build({f"TRIMS_{name.upper()}": text for name, text in given.items()})
    assert config == Config(
        Path("/r"), Path("/s"), 2 << 30, 3_000_000_000, Choice("git", "/m:x"),
        "lfu", "fifo", 1.5, "shm", Path("/dev/shm"), False,
        "GPU-1,GPU-2", "ipc", 0.5, 2 << 30, 3.0, False, "gdsf", "fake:/f",
        {"mxnet": Path(sys.executable), "other": Path(sys.executable)}, Path("/e"), 1 << 20, 7.0, 3, 5, 1 << 20,
        1 << 30, 3, 1 << 20, 9.0, Path("/h"), ("models.lan", "10.0.0.0/8"), 0o660,
        Path("/t.yaml"), 77, 2.5, 1 << 30, False, True, "verified", "first", "yes", ("--port", "9000"), True,
        Level.SYSTEM, True, "debug", "json",
    )  # fmt: skip


def test_an_empty_folder_of_environments_is_the_users_own() -> None:
    assert build({"TRIMS_ENVIRONMENTS_DIR": ""}).environments_dir == default_folder()


@pytest.mark.parametrize(("value", "expected"), [(False, "no"), (True, "yes"), ("off", None), ("AUTO", "auto")])
def test_whether_there_is_an_endpoint_may_be_a_boolean_of_yaml(value: object, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match="endpoint 'off' is none of auto, yes, no"):
            build(endpoint=value)
    else:
        assert build(endpoint=value).endpoint == expected


def test_flags_of_the_endpoint_are_split_as_a_shell_does_or_a_list() -> None:
    assert build(endpoint_flags="--preload 'a b'").endpoint_flags == ("--preload", "a b")
    assert build(endpoint_flags=["--port", 9000]).endpoint_flags == ("--port", "9000")
    with pytest.raises(ConfigError, match="endpoint_flags"):
        build(endpoint_flags="--preload 'a")


@pytest.mark.parametrize(("text", "expected"), [("lazy", None), ("forever", None), ("0", 0.0), (30, 30.0)])
def test_keep_alive_is_lazy_or_a_number_of_seconds(text: object, expected: float | None) -> None:
    assert build(keep_alive_s=text).keep_alive_s == expected


def test_folders_follow_the_conventions_of_the_desktop() -> None:
    config = build({"XDG_STATE_HOME": "/x/state", "XDG_RUNTIME_DIR": "/x/run"})
    assert (config.state_dir, config.runtime_dir) == (Path("/x/state/trims"), Path("/x/run/trims"))
    assert build({"TMPDIR": "/scratch/"}).runtime_dir.parent == Path("/scratch")
    assert build().state_dir == Path.home() / ".local/state/trims"


def test_relative_folders_are_made_absolute() -> None:
    assert build(state_dir="here").state_dir == Path.cwd() / "here"


def test_default_capacities_are_half_of_what_there_is() -> None:
    import os

    held = os.statvfs("/dev/shm")
    config = build()
    assert 0 < config.cpu_capacity_bytes <= held.f_blocks * held.f_frsize // 2
    assert 0 < config.disk_capacity_bytes <= 256 << 30


def test_what_images_hold_already_counts_as_room_for_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    assert build(state_dir=tmp_path).disk_capacity_bytes == 50_000
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "one").write_bytes(b"x" * (1 << 20))
    assert build(state_dir=tmp_path).disk_capacity_bytes == (100_000 + (1 << 20)) // 2


def test_a_full_disk_leaves_a_capacity_of_next_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    assert build(state_dir=tmp_path).disk_capacity_bytes == 1


def test_every_setting_but_the_runtime_folder_has_a_flag_and_every_flag_a_setting() -> None:
    flags = {flag.replace("-", "_") for flag in daemon_commands._FLAGS}
    assert flags | {"runtime_dir", "verify"} == {field.name for field in fields(Config)}


def test_memory_without_a_name_lies_in_no_folder() -> None:
    with pytest.raises(ConfigError, match=r"segment_dir /mnt/large has no meaning with cpu_memory memfd"):
        build(cpu_memory="memfd", segment_dir="/mnt/large", cpu_capacity_bytes="1GiB")


def test_the_default_capacity_of_memory_without_a_name_does_not_depend_on_dev_shm() -> None:
    assert build(cpu_memory="memfd").cpu_capacity_bytes == allowed_bytes() // 2


@pytest.mark.parametrize("kind", ["shm", "memfd"])
def test_the_default_capacity_follows_what_control_groups_allow(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "allowed_bytes", lambda: 600 << 20)
    assert build(cpu_memory=kind).cpu_capacity_bytes == 300 << 20


@pytest.mark.parametrize("name", ["cpu_tier", "disk_tier"])
def test_a_setting_of_an_earlier_release_is_refused_with_the_remedy(name: str) -> None:
    with pytest.raises(ConfigError, match=f"setting {name}: .*; remove the setting"):
        build(**{name: "shared"})


def test_a_misspelt_variable_is_reported_with_the_nearest_setting() -> None:
    (found,) = unknown_variables({"TRIMS_CPU_CAPACITY": "1", "TRIMS_VERIFY": "1", "TRIMS_REQUIRE": "x", "HOME": "/"})
    assert found == "the variable TRIMS_CPU_CAPACITY has no meaning to trims; did you mean TRIMS_CPU_CAPACITY_BYTES?"
    (found,) = unknown_variables({"TRIMS_0123456789": "1"})
    assert "TRIMS_STATE_DIR" in found
