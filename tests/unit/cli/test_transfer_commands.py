"""Commands about addresses: what is asked of the daemon, and how its answer is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from operators import MODEL, Operator

from trims.cli import transfer_commands
from trims.cli.main import main
from trims.cli.output import say_transfers
from trims.control.answers import Loading, Pruned, Transfer
from trims.core.errors import CallerError, ModelExistsError, SourceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

ADDRESS = "hf://org/bert"
DONE = Loading("done", 10, 10, True, None, note="1 files, 10 B, proven by sha256")
FETCHING = Transfer("s3://b/m", 25, 100, 25, 1 << 20, 3.0, "fetch")


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Operator]:
    """Have a daemon that gives these answers."""

    def given(**answers: Any) -> Operator:
        made = Operator(**answers)
        monkeypatch.setattr(transfer_commands, "admin", made.admin)
        return made

    return given


def names(daemon: Operator) -> list[str]:
    return [name for name, _, _ in daemon.orders]


def test_a_registered_model_is_pulled_and_success_is_said(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = answer(pull=DONE)
    assert main(["pull", "bert", "--update"]) == 0
    assert capsys.readouterr().out == f"bert: {DONE.note}\nsuccess\n"
    ((_, values, named),) = daemon.orders
    assert (values, named["update"]) == (("bert",), True)


def test_an_address_is_registered_first(answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]) -> None:
    daemon = answer(add=MODEL, pull=DONE)
    assert main(["pull", ADDRESS, "--name", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"model": "bert", "note": DONE.note}
    assert names(daemon) == ["add", "pull"]
    assert daemon.orders[0][1:] == ((ADDRESS,), {"name": "mine", "lazy": True})


@pytest.mark.parametrize(("uri", "pulled"), [(ADDRESS, True), ("hf://other/bert", False)])
def test_a_name_that_is_taken_is_pulled_only_if_it_stands_for_the_same_address(
    uri: str, pulled: bool, answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    known = replace(MODEL, manifest_json=json.dumps({"name": "bert", "artifact": {"uri": uri}}))
    daemon = answer(add=ModelExistsError("bert is taken"), show=known, pull=DONE)
    assert main(["pull", ADDRESS]) == (0 if pulled else 1)
    assert ("pull" in names(daemon)) == pulled
    assert ("--name" in capsys.readouterr().err) != pulled


def test_a_name_beside_a_registered_model_is_refused(answer: Callable[..., Operator]) -> None:
    daemon = answer(pull=DONE)
    assert main(["pull", "bert", "--name", "x"]) != 0
    assert names(daemon) == []


@pytest.mark.parametrize("error", [SourceUnavailableError("away"), CallerError("no")])
def test_a_pull_that_fails_says_no_success(
    error: Exception, answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(pull=error)
    assert main(["pull", "bert"]) != 0
    captured = capsys.readouterr()
    assert (captured.out, str(error) in captured.err) == ("", True)


def test_a_push_names_model_and_address(answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]) -> None:
    daemon = answer(push=DONE)
    assert main(["push", "bert", "s3://b/m"]) == 0
    assert capsys.readouterr().out.endswith("success\n")
    assert daemon.orders[0][1] == ("bert", "s3://b/m")
    assert daemon.orders[0][2]["replace"] is False
    assert main(["push", "bert", "s3://b/m", "--replace"]) == 0
    assert daemon.orders[1][2]["replace"] is True


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_what_was_removed_is_listed(
    words: list[str], answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(prune=Pruned(("/d/a", "/d/b"), 2048))
    assert main(["prune", *words]) == 0
    captured = capsys.readouterr()
    assert "2.0 KiB" in captured.out
    assert all(folder in captured.out + captured.err for folder in ("/d/a", "/d/b"))
    assert main(["prune", "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["nbytes"] == 2048


@pytest.mark.parametrize(
    ("transfer", "words"),
    [
        (FETCHING, "fetching s3://b/m: 25% of 100 B, 1.0 MiB/s, 3.00 s left"),
        (replace(FETCHING, left_s=None), "fetching s3://b/m: 25% of 100 B, 1.0 MiB/s"),
        (replace(FETCHING, what="look", total_bytes=0, done_bytes=0), "looking at s3://b/m: looking"),
        (replace(FETCHING, what="fetch", total_bytes=0, done_bytes=0), "fetching s3://b/m: looking"),
        (replace(FETCHING, what="read", total_bytes=0), "reading s3://b/m: looking"),
        (replace(FETCHING, what="later"), "later s3://b/m: 25% of 100 B, 1.0 MiB/s, 3.00 s left"),
        (replace(FETCHING, trouble="b cannot be reached"), "25% of 100 B, waiting: b cannot be reached"),
    ],
)
def test_a_transfer_is_shown_in_each_state(transfer: Transfer, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    say_transfers([transfer])
    assert words in " ".join(capsys.readouterr().out.split())
