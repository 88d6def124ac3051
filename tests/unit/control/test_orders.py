"""Orders of an operator as messages: every value is of its field's type, or refused by name before it is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trims.control import orders
from trims.core.errors import CallerError
from trims.wire import trims_pb2 as pb

MANIFEST = {"name": "m", "artifact": {"path": "m.npz"}}


def test_the_control_socket_lies_in_the_folder_or_in_this_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", "/of/the/user")
    assert orders.control_socket(None) == Path("/of/the/user/control.sock")
    assert orders.control_socket("run") == Path.cwd() / "run" / "control.sock"


@pytest.mark.parametrize(
    ("order", "field", "wanted"),
    [
        (lambda: orders.load(3, None, None), "name is 3", "str"),  # type: ignore[arg-type]
        (lambda: orders.load(None, None, None), "name is None", "str"),  # type: ignore[arg-type]
        (lambda: orders.load("m", 5, None), "place is 5", "str"),  # type: ignore[arg-type]
        (lambda: orders.load("m", None, "soon"), "deadline_s is 'soon'", "float"),  # type: ignore[arg-type]
        (lambda: orders.load("\ud800", None, None), r"name is '\ud800'", "str"),
        (lambda: orders.evict("m", None, drain="yes"), "drain is 'yes'", "bool"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_another_type_is_refused_by_its_name(order: Any, field: str, wanted: str) -> None:
    with pytest.raises(CallerError) as caught:
        order()
    assert str(caught.value) == f"{field}; it must be of type {wanted}"


def test_no_place_and_no_deadline_are_left_to_the_daemon() -> None:
    assert orders.load("m", None, None) == pb.LoadRequest(name="m")
    assert orders.load("m", "gpu:0", 0.0) == pb.LoadRequest(name="m", place="gpu:0", deadline_s=0.0)
    assert not orders.load("m", None, None).HasField("deadline_s")
    assert orders.load("m", None, 0.0).HasField("deadline_s")
    assert orders.evict("m", None, drain=True) == pb.EvictRequest(name="m", drain=True)
