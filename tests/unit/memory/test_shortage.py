"""How a lack of memory is recognized, and which limit of the machine is named for it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import CapacityError, ConversionError
from trims.memory.shortage import group_limit, killed_words, lacks_memory, names_memory

if TYPE_CHECKING:
    from pathlib import Path


class MuteError(Exception):
    """Cannot say what is wrong."""

    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    "text",
    [
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 4.00 GiB for an array",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to",
        "OSError: [Errno 12] Cannot allocate memory",
        "onnxruntime: bfc_arena.cc Failed to allocate memory for requested buffer of size 1024",
        "ImportError: libtorch_cpu.so: failed to map segment from shared object",
        "RuntimeError: can't start new thread",
        "libgomp: Thread creation failed: Resource temporarily unavailable",
    ],
)
def test_words_of_libraries_for_refused_memory_are_known(text: str) -> None:
    assert names_memory(text)
    assert lacks_memory(RuntimeError(text))


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "no")])
def test_errors_without_words_are_known_by_their_class_or_number(error: BaseException) -> None:
    assert lacks_memory(error)
    behind = ValueError("of a library")
    behind.__context__ = error
    assert lacks_memory(behind), "an error that hides it"


@pytest.mark.parametrize(
    "error", [ValueError("no"), OSError(errno.ENOSPC, "No space left on device"), MuteError(), None, KeyError("memory")]
)
def test_other_errors_are_none_of_memory(error: BaseException | None) -> None:
    assert not lacks_memory(error)


def test_errors_of_ours_say_nothing_of_this_process() -> None:
    assert not lacks_memory(CapacityError("no room at cpu"))
    assert not lacks_memory(ConversionError("the child process exceeded its memory limit: MemoryError"))


def test_errors_that_stand_behind_each_other_in_a_circle_end() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert not lacks_memory(one)


@pytest.fixture
def limited(tmp_path: Path) -> Path:
    """A root whose control group allows 512 MiB of 8 GiB."""
    group = tmp_path / "sys/fs/cgroup/box"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {8 << 20} kB\nMemAvailable: {8 << 20} kB\n")
    (group / "memory.max").write_text(f"{512 << 20}\n")
    return tmp_path


def test_a_control_group_that_limits_memory_is_named_with_its_value(limited: Path) -> None:
    assert group_limit(limited).startswith("its control group allows 512.0 MiB for all of its processes: raise it (")
    assert killed_words(limited).endswith("MemoryMax= of systemd))")


def test_a_control_group_without_a_limit_or_none_at_all_is_not_named(limited: Path) -> None:
    for content in ("max", str(16 << 30)):
        (limited / "sys/fs/cgroup/box/memory.max").write_text(content)
        assert killed_words(limited) == " (by the kernel for lack of memory, or by another process)"
    assert group_limit(limited / "nowhere") == ""
