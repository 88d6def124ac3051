"""Records of requests: packed by the generator, read as arrays."""

from __future__ import annotations

from trims_bench.workloads.records import RECORD, REFUSED, is_answered, kind_of, unpacked


def test_packed_records_are_read_in_the_order_of_their_numbers() -> None:
    packed = RECORD.pack(2, 1, 200, 1, 10, 20, 30, 40) + RECORD.pack(1, 0, REFUSED, -1, 5, -1, -1, 6)
    found = unpacked(packed)
    assert list(found["number"]) == [1, 2]
    assert [found[1][name] for name in ("model", "status", "cold", "intended", "sent", "first", "done")] == [
        1, 200, 1, 10, 20, 30, 40,
    ]  # fmt: skip
    assert list(is_answered(found)) == [False, True]
    assert len(unpacked(b"")) == 0


def test_an_outcome_has_a_word_and_a_status_of_http_is_one() -> None:
    assert [kind_of(status) for status in (503, REFUSED, -2, -3, -4)] == [
        "503", "refused", "closed", "deadline", "unsent",
    ]  # fmt: skip
