"""Sizes, times and places as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import ConfigError
from trims.core.units import align_up, format_bytes, format_latency, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0), ("17", 17), (17, 17), ("1k", 1000), ("1 KB", 1000), ("1KiB", 1024), ("1.5 MiB", 1_572_864),
        ("2mb", 2_000_000), (" 4GiB ", 4 << 30), ("1.25g", 1_250_000_000), ("1TiB", 1 << 40), ("8b", 8),
    ],
)  # fmt: skip
def test_sizes_are_read_as_they_are_written(text: str | int, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "x", "-1", -1, "1 parsec", "1e9", "1,5 GiB", "GiB", "nan", True, None, "0x10"])
def test_what_is_no_size_is_named(text: object) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_bytes(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.0 GiB"),
     (5 << 40, "5.0 TiB"), (5 << 50, "5120.0 TiB")],
)  # fmt: skip
def test_sizes_are_written_for_people(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@given(st.integers(0, 1 << 50))
def test_what_is_written_reads_as_about_the_same(nbytes: int) -> None:
    assert parse_bytes(format_bytes(nbytes)) == pytest.approx(nbytes, rel=0.06, abs=1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0004, "0.40 ms"), (0.9999, "999.90 ms"), (1, "1.00 s"), (119, "119.00 s"), (600, "10.0 min")],
)
def test_times_are_written_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.integers(0, 1 << 48), st.sampled_from([1, 2, 64, 4096]))
def test_aligning_goes_up_and_no_further(offset: int, alignment: int) -> None:
    aligned = align_up(offset, alignment)
    assert aligned % alignment == 0
    assert offset <= aligned < offset + alignment


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0000123, "12 us"), (0.0123, "12.3 ms"), (9.9, "9900.0 ms"), (12.3, "12.3 s")]
)
def test_latencies_have_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert format_latency(seconds) == text
