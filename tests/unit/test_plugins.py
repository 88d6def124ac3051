"""Parts of other packages: found by the name that a setting says, and refused with the plug-in's name."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
from own_parts import Half, declare

from trims.core.errors import ConfigError
from trims.plugins import Choice, Kind

GROUP = "trims.registries"
CLOSED = "has no drawers"


def check(part: object, given: str) -> str:
    return "" if part == f"ours for {given}" or hasattr(part, "settings") else CLOSED


KIND: Kind[str, Any] = Kind(GROUP, "shelf", {"oak": lambda given: f"ours for {given}"}, check)


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [("oak", "oak", ""), ("oak:", "oak", ""), ("a.b_c-9:/x:y,z", "a.b_c-9", "/x:y,z"), ("oak: x ", "oak", " x ")],
)
def test_a_setting_is_a_name_and_perhaps_an_argument(text: str, name: str, argument: str) -> None:
    assert Choice.parse(text) == Choice(name, argument)
    assert str(Choice.parse(text)) == text.removesuffix(":")


@pytest.mark.parametrize("text", ["", ":", ":x", "Oak", "o k", "/oak", "-oak", "oak\n"])
def test_a_setting_that_names_no_part_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not NAME or NAME:ARGUMENT"):
        Choice.parse(text)


def test_one_of_ours_is_opened_and_stands_for_itself() -> None:
    opened = KIND.open(Choice("oak"), "books")
    assert (opened.part, opened.where) == ("ours for books", "")


def test_one_of_a_plugin_is_opened_and_told_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, GROUP, memory="MemoryRegistry")
    opened = KIND.open(Choice("memory"), "books")
    assert opened.part.settings == "books"
    assert opened.where == "the trims.registries plug-in 'memory' (own_parts:MemoryRegistry)"


def test_an_unknown_name_is_told_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, GROUP, zebra="fails", ash="fails")
    with pytest.raises(
        ConfigError, match=r"no shelf 'elm'; known are ash, oak, zebra \(a package adds one .*registries"
    ):
        KIND.open(Choice("elm"), "")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("fails", "cannot be opened: ValueError: the shelf is empty"),
        ("refuses", "cannot be opened: /srv is not mounted; mount it"),
        ("ends", "cannot be opened: SystemExit: no licence"),
        ("NOT_CALLABLE", "cannot be opened: TypeError: 'int' object is not callable"),
        ("absent", "cannot be opened: AttributeError: module 'own_parts' has no attribute 'absent'"),
        ("Half", CLOSED),
    ],
)
def test_a_plugin_that_cannot_be_opened_is_named_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, function: str, said: str
) -> None:
    declare(monkeypatch, GROUP, broken=function)
    with pytest.raises(ConfigError) as caught:
        KIND.open(Choice("broken"), "")
    assert str(caught.value) == f"the trims.registries plug-in 'broken' (own_parts:{function}) {said}"


def test_a_module_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("far", "no_such_module:open", GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [entry])
    with pytest.raises(ConfigError, match=r"'far' \(no_such_module:open\) cannot be opened: ModuleNotFoundError: No"):
        KIND.open(Choice("far"), "")


def test_what_is_no_part_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Half, "made", [])
    declare(monkeypatch, GROUP, half="Half")
    with pytest.raises(ConfigError, match=CLOSED):
        KIND.open(Choice("half"), "")
    assert [made.closed for made in Half.made] == [True]


def test_a_part_whose_properties_raise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(part: object, given: str) -> str:
        raise ZeroDivisionError("of a property")

    declare(monkeypatch, GROUP, memory="MemoryRegistry")
    with pytest.raises(ConfigError, match="cannot be asked what it is: ZeroDivisionError: of a property"):
        Kind(GROUP, "shelf", {}, raises).open(Choice("memory"), "")


def test_a_plugin_with_a_name_of_ours_is_refused_before_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, GROUP, memory="MemoryRegistry", oak="fails")
    assert KIND.open(Choice("oak"), "x").where == ""
    with pytest.raises(ConfigError, match=r"'oak' \(own_parts:fails\) has the name of a shelf of trims; uninstall"):
        KIND.open(Choice("memory"), "")


def test_two_plugins_of_one_name_are_refused_and_one_found_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (
        importlib.metadata.EntryPoint("a", f"own_parts:{name}", GROUP) for name in ("MemoryRegistry", "fails")
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [one, one])
    assert KIND.names() == ["a", "oak"]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [one, other])
    with pytest.raises(
        ConfigError, match=r"two trims.registries plug-ins call themselves 'a': own_parts:Memory.*fails"
    ):
        KIND.open(Choice("a"), "")
