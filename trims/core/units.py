"""Sizes and times as text. Numbers inside the code are plain bytes, seconds or nanoseconds, said by their names."""

from __future__ import annotations

import re

from trims.core.errors import ConfigError

_SUFFIX_BYTES = {
    "": 1,
    "b": 1,
    "k": 1000, "kb": 1000, "kib": 1 << 10,
    "m": 1000**2, "mb": 1000**2, "mib": 1 << 20,
    "g": 1000**3, "gb": 1000**3, "gib": 1 << 30,
    "t": 1000**4, "tb": 1000**4, "tib": 1 << 40,
}  # fmt: skip
#: Compiled when it is first used: clients import this module, and none reads a size.
_SIZE = r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*\Z"


def parse_bytes(text: str | int) -> int:
    """Read `4GiB`, `500 MB` or a plain number of bytes. Raises ConfigError on anything else."""
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise ConfigError(f"{text} is not a size: it is negative")
        return text
    match = re.match(_SIZE, str(text))
    if match is None or match.group(2).lower() not in _SUFFIX_BYTES:
        raise ConfigError(f"{text!r} is not a size; write a number of bytes, or one with KiB, MiB, GiB, KB, MB or GB")
    return int(float(match.group(1)) * _SUFFIX_BYTES[match.group(2).lower()])


def format_bytes(n_bytes: int) -> str:
    """`1536` -> `1.5 KiB`."""
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """`0.0004` -> `0.40 ms`."""
    if seconds < 1:
        return f"{seconds * 1e3:.2f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.1f} min"


def align_up(offset_bytes: int, alignment_bytes: int) -> int:
    """Return the smallest multiple of the alignment that is not below the offset."""
    return -(-offset_bytes // alignment_bytes) * alignment_bytes


def format_latency(seconds: float) -> str:
    """Return seconds in the unit that suits them: `12 us`, `3.4 ms`, `12.3 s`."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
