"""The command `alias`: what it asks of the daemon, and how the answer is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from operators import Operator

from trims.cli import alias_command
from trims.cli.main import main
from trims.control import Aliases, ModelAlias

FOUND = Aliases("bert", ("1", "2"), (ModelAlias("", "2", "1"), ModelAlias("stable", "1", "")))


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Operator:
    made = Operator(alias=FOUND)
    monkeypatch.setattr(alias_command, "admin", made.admin)
    return made


def asked(version: str = "", *, back: bool = False, remove: bool = False) -> tuple[str, dict[str, Any]]:
    return version, {"back": back, "remove": remove}


@pytest.mark.parametrize(
    ("words", "order", "told"),
    [
        (["bert", "2"], asked("2"), "bert leads to 2\n"),
        (["bert@stable", "1"], asked("1"), "bert@stable leads to 1\n"),
        (["bert", "--back"], asked(back=True), "bert leads to 2\n"),
        (["bert@stable", "--remove"], asked(remove=True), "bert@stable is removed\n"),
    ],
)
def test_an_order_is_passed_on_and_what_came_of_it_is_told(
    daemon: Operator, capsys: pytest.CaptureFixture[str], words: list[str], order: tuple[str, Any], told: str
) -> None:
    assert main(["alias", *words]) == 0
    assert capsys.readouterr().out == told
    assert daemon.orders == [("alias", (words[0], order[0]), order[1])]


def test_versions_are_listed_with_what_leads_to_each(daemon: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alias", "bert"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:3] == [["bert@1", "bert@stable"], ["bert@2", "bert"]]
    assert lines[3][:5] == ["bert", "led", "to", "1", "before:"]
    assert daemon.orders[0][1] == ("bert", "")


def test_json_has_all_of_it(daemon: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alias", "bert", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["versions"], found["aliases"][0]) == (["1", "2"], {"label": "", "version": "2", "previous": "1"})
    assert daemon.orders


@pytest.mark.parametrize("words", [["2", "--back"], ["--back", "--remove"], ["1", "--remove"]])
def test_two_orders_at_once_are_refused(daemon: Operator, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["alias", "bert", *words]) == 1
    assert "give one of these" in capsys.readouterr().err
    assert daemon.orders == []
