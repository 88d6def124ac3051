"""Orders to a keeper: each is checked before anything happens, and an error names the field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trims.core.errors import BadMessageError
from trims.keeper.messages import (
    Copy,
    Create,
    Digest,
    End,
    Export,
    Fill,
    Free,
    Hello,
    Order,
    Read,
    Room,
    Seal,
    parse_order,
)

if TYPE_CHECKING:
    from trims.wire.frames import Message

SOURCE = {"driver": "vmm", "device": "GPU-1", "size_bytes": 2, "handle": "", "cuda": "driver"}


@pytest.mark.parametrize(
    ("message", "order"),
    [
        ({"op": "hello"}, Hello()),
        ({"op": "room"}, Room()),
        ({"op": "create", "nbytes": 3}, Create(3)),
        ({"op": "fill", "image": 1}, Fill(1)),
        ({"op": "copy", "image": 1, **SOURCE}, Copy(1, SOURCE)),
        ({"op": "seal", "image": 1, "key": "k", "digest": "d"}, Seal(1, "k", "d")),
        ({"op": "export", "image": 1}, Export(1)),
        ({"op": "read", "image": 1}, Read(1)),
        ({"op": "digest", "image": 1}, Digest(1)),
        ({"op": "free", "image": 1}, Free(1)),
        ({"op": "end"}, End()),
    ],
)
def test_every_order_is_known(message: Message, order: Order) -> None:
    assert parse_order(message) == order


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({}, "unknown order None; hello, room, create"),
        ({"op": ["create"]}, "unknown order"),
        ({"op": "create"}, "'nbytes' must be a whole number"),
        ({"op": "create", "nbytes": -1}, "'nbytes' must be a whole number"),
        ({"op": "create", "nbytes": 1, "image": 1}, "unknown field 'image' in 'create'"),
        ({"op": "fill", "image": "1"}, "'image' must be a whole number"),
        ({"op": "seal", "image": 1, "key": "k"}, "a seal needs 'key' and 'digest'"),
        ({"op": "seal", "image": 1, "key": 7, "digest": "d"}, "'key' must be text"),
        ({"op": "copy", "image": 1, **SOURCE, "fd": 3}, "unknown field 'fd' in 'copy'"),
        ({"op": "end", "now": True}, "unknown field 'now' in 'end'"),
    ],
)
def test_a_wrong_order_is_refused_and_says_why(message: Message, said: str) -> None:
    with pytest.raises(BadMessageError, match=said):
        parse_order(message)
