"""Features of the host's processor that decide an image: only those that weight layouts depend on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from trims.image import host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

X86 = b"processor\t: 0\nflags\t\t: sse4_2 avx512f fma avx2 smep\n\nprocessor\t: 1\nflags\t\t: sve\n"
ARM = b"processor\t: 0\nFeatures\t: fp asimd crc32 sve\nCPU part\t: 0xd4f\n"


@pytest.fixture
def features_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], tuple[str, ...]]]:
    """The features that a host with this /proc/cpuinfo has."""

    def find(cpuinfo: bytes) -> tuple[str, ...]:
        host.cpu_features.cache_clear()
        monkeypatch.setattr(host, "_first_processor", lambda: cpuinfo)
        return host.cpu_features()

    yield find
    host.cpu_features.cache_clear()


def test_features_are_sorted_and_only_those_that_decide_a_layout(
    features_of: Callable[[bytes], tuple[str, ...]],
) -> None:
    assert features_of(X86) == (os.uname().machine, "avx2", "avx512f", "fma")
    assert features_of(ARM) == (os.uname().machine, "asimd", "sve")


def test_a_host_that_names_no_features_is_known_by_its_machine_alone(
    features_of: Callable[[bytes], tuple[str, ...]],
) -> None:
    for cpuinfo in (b"", b"flags without a colon", b"model name : avx2\n"):
        assert features_of(cpuinfo) == (os.uname().machine,)


def test_a_host_without_cpuinfo_is_known_by_its_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str, flags: int) -> int:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "open", missing)
    assert host._first_processor() == b""


def test_this_hosts_features_are_read_from_the_kernel() -> None:
    host.cpu_features.cache_clear()
    found = host.cpu_features()
    assert found[0] == os.uname().machine
    assert set(found[1:]) <= set(host._first_processor().decode().split())
