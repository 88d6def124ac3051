"""Messages of the attach door: what is asked arrives as it was, and what is wrong is refused by its field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import BadMessageError
from trims.wire.messages import (
    Attach,
    Close,
    Forget,
    Hello,
    Open,
    Program,
    Resume,
    Template,
    Templates,
    Workspace,
    parse_request,
)

KEY = "0123456789abcdef" * 2
PROGRAM: dict[str, Any] = {"op": "program", "id": 1, "key": KEY}
TEMPLATE: dict[str, Any] = {"op": "template", "id": 1, "key": KEY, "address": "a", "pid": 2, "nbytes": 3, "modules": 4}

GOOD: list[tuple[dict[str, Any], object]] = [
    ({"op": "hello", "protocol": 1, "agent": "a"}, Hello(1, "a")),
    ({"op": "hello", "protocol": 1}, Hello(1, "")),
    ({"op": "open", "id": 1, "model": "m"}, Open(1, "m", None, None, None, prefetch=False)),
    (
        {"op": "prefetch", "id": 2, "path": "/x", "place": "cpu", "deadline_s": 1},
        Open(2, None, "/x", "cpu", 1.0, prefetch=True),
    ),
    (
        {"op": "open", "id": 3, "model": "é", "instead_of": "gpu:0", "deadline_s": 0.0},
        Open(3, "é", None, None, 0.0, prefetch=False, instead_of="gpu:0"),
    ),
    ({"op": "close", "lease": 4}, Close(None, 4)),
    ({"op": "close", "id": 0, "lease": 4}, Close(0, 4)),
    ({"op": "attach", "id": 5, "lease": 4}, Attach(5, 4)),
    ({"op": "workspace", "id": 6, "lease": 4, "nbytes": 1 << 40}, Workspace(6, 4, 1 << 40)),
    ({"op": "resume", "id": 7, "key": "k", "place": "cpu"}, Resume(7, "k", "cpu")),
    (PROGRAM, Program(1, KEY, "")),
    ({**PROGRAM, "name": "x.py", "unread": {"TERM": "x", "": "/"}}, Program(1, KEY, "x.py", {"TERM": "x", "": "/"})),
    (TEMPLATE, Template(1, KEY, "a", 2, 3, 4, reads=[])),
    (
        {**TEMPLATE, "left_out": {"m": "why"}, "reads": ["TERM", ""]},
        Template(1, KEY, "a", 2, 3, 4, {"m": "why"}, ["TERM", ""]),
    ),
    ({"op": "template", "id": 1, "key": KEY, "unfit": "why"}, Template(1, KEY, unfit="why")),
    ({"op": "templates", "id": 8}, Templates(8)),
    ({"op": "forget", "id": 9}, Forget(9, None)),
    ({"op": "forget", "id": 9, "template": "x.py"}, Forget(9, "x.py")),
]


@pytest.mark.parametrize(("message", "request_"), GOOD)
def test_a_request_arrives_as_it_was_asked(message: dict[str, Any], request_: object) -> None:
    assert parse_request(message) == request_


@pytest.mark.parametrize("message", [message for message, _ in GOOD])
def test_a_field_too_many_is_refused_by_name(message: dict[str, Any]) -> None:
    with pytest.raises(BadMessageError, match=f"unknown field 'colour' in {message['op']!r}"):
        parse_request({**message, "colour": "red"})


OPEN = {"op": "open", "id": 1, "model": "m"}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({}, "unknown op None; open, prefetch, close"),
        ({"op": "explode"}, "unknown op 'explode'"),
        ({"op": ["open"]}, r"unknown op \['open'\]"),
        ({**OPEN, "path": "/x"}, "exactly one of 'model' and 'path'"),
        ({"op": "open", "id": 1}, "exactly one of 'model' and 'path'"),
        ({**OPEN, "id": True}, "'id' must be a whole number"),
        ({**OPEN, "id": -1}, "'id' must be a whole number"),
        ({**OPEN, "id": 1 << 53}, "'id' must be a whole number"),
        ({**OPEN, "id": 1.0}, "'id' must be a whole number"),
        ({"op": "open", "model": "m"}, "'id' must be a whole number from 0 to 2.53 - 1, not None"),
        ({**OPEN, "model": 3}, "'model' must be text of at most 4096 characters"),
        ({**OPEN, "model": "x" * 4097}, "'model' must be text"),
        ({**OPEN, "model": "a\0b"}, "'model' must be text without NUL characters"),
        ({**OPEN, "place": "\ud800"}, "'place' holds half of a surrogate pair"),
        ({**OPEN, "deadline_s": True}, "'deadline_s' must be a number of seconds from 0 to 1000000"),
        ({**OPEN, "deadline_s": "1"}, "'deadline_s' must be"),
        ({**OPEN, "deadline_s": -0.1}, "'deadline_s' must be"),
        ({**OPEN, "deadline_s": float("nan")}, "'deadline_s' must be"),
        ({**OPEN, "deadline_s": 1e6 + 1}, "'deadline_s' must be"),
        ({"op": "close", "id": None, "lease": 1}, "'id' must be a whole number"),
        ({"op": "close"}, "'lease' must be a whole number"),
        ({"op": "workspace", "id": 1, "lease": 1, "nbytes": -1}, "'nbytes' must be a whole number"),
        ({"op": "program", "id": 1}, "'key' must be 32 hexadecimal digits"),
        ({**PROGRAM, "key": KEY[1:]}, "'key' must be 32 hexadecimal digits"),
        ({**PROGRAM, "key": KEY.upper()}, "'key' must be 32 hexadecimal digits"),
        ({**PROGRAM, "key": KEY + "\n"}, "'key' must be 32 hexadecimal digits"),
        ({**PROGRAM, "key": 1}, "'key' must be text"),
        ({**PROGRAM, "name": 1}, "'name' must be text"),
        ({**PROGRAM, "unread": ["TERM"]}, "'unread' must be an object"),
        ({**PROGRAM, "unread": {"TERM": 1}}, "'unread' must be an object"),
        ({**TEMPLATE, "pid": None}, "'pid' must be a whole number"),
        ({**TEMPLATE, "nbytes": 1.5}, "'nbytes' must be a whole number"),
        ({**TEMPLATE, "modules": -1}, "'modules' must be a whole number"),
        ({**TEMPLATE, "left_out": {"m": None}}, "'left_out' must be an object"),
        ({**TEMPLATE, "reads": "TERM"}, "'reads' must be a list"),
        ({**TEMPLATE, "reads": [1]}, "'reads' must be a list"),
        ({**TEMPLATE, "unfit": "why"}, "unknown field 'address'"),
        ({"op": "template", "id": 1, "key": KEY, "unfit": 1}, "'unfit' must be text"),
        ({"op": "templates"}, "'id' must be a whole number"),
        ({"op": "forget", "id": 1, "template": 1}, "'template' must be text"),
    ],
)
def test_a_message_that_is_wrong_is_refused_by_its_field(message: dict[str, Any], words: str) -> None:
    with pytest.raises(BadMessageError, match=words) as caught:
        parse_request(message)
    assert len(str(caught.value)) <= 200


def test_the_longest_name_and_deadline_pass() -> None:
    parsed = parse_request({**OPEN, "model": "x" * 4096, "deadline_s": 1e6})
    assert isinstance(parsed, Open)
    assert (parsed.model, parsed.deadline_s) == ("x" * 4096, 1e6)


VALUES = (
    st.just(KEY)
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
)
OPERATIONS = VALUES | st.sampled_from(
    [
        "open",
        "prefetch",
        "close",
        "attach",
        "workspace",
        "hello",
        "resume",
        "program",
        "template",
        "templates",
        "forget",
    ]
)
FIELDS = st.sampled_from(
    [
        "id", "model", "path", "place", "deadline_s", "lease", "nbytes", "protocol", "agent", "key", "instead_of",
        "name", "unread", "address", "pid", "modules", "left_out", "reads", "unfit", "template",
    ]
)  # fmt: skip


@given(OPERATIONS, st.dictionaries(FIELDS, VALUES, max_size=6))
def test_any_message_is_a_request_or_a_bad_message(operation: object, fields: dict[str, object]) -> None:
    try:
        parsed = parse_request({**fields, "op": operation})
    except BadMessageError:
        return
    assert isinstance(
        parsed, Hello | Open | Resume | Close | Attach | Workspace | Program | Template | Templates | Forget
    )
