"""Commands about models: what is asked of the daemon, and how its answer is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from operators import MODEL, Operator, a_replica

from trims.cli import model_commands
from trims.cli.main import main
from trims.control import Change, Evicted, Residents

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGE = Change("0123456789abcdef" * 2, "cpu", "filling", "sealed", "it was filled", 1, ("a", "b"))


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Operator]:
    """Have a daemon that gives these answers."""

    def given(**answers: Any) -> Operator:
        made = Operator(**answers)
        monkeypatch.setattr(model_commands, "admin", made.admin)
        return made

    return given


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "place", "drain"),
    [
        ([], "cpu", False),
        (["--place", "gpu:0", "--drain"], "gpu:0", True),
        (["--all-tiers"], None, False),
        (["--all-tiers", "--place", "cpu"], None, False),
    ],
)
def test_evict_frees_memory_unless_another_place_or_all_are_named(
    answer: Callable[..., Operator],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    place: str | None,
    drain: bool,
) -> None:
    daemon = answer(evict=Evicted((), ()))
    where = f" at {place}" if place else ""
    assert told(capsys, "evict", "bert", *words) == f"bert is not resident{where}\n"
    assert daemon.orders == [("evict", ("bert", place), {"drain": drain})]


def test_evict_tells_what_went_and_what_goes_later(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(evict=Evicted(("cpu",), ("gpu:0",)))
    assert told(capsys, "evict", "bert").splitlines() == [
        "bert is freed at cpu",
        "bert goes from gpu:0 when its last lease closes",
    ]


def test_pin_pins_before_it_loads_and_unpin_takes_it_back(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = answer(load=a_replica())
    assert told(capsys, "pin", "bert") == "bert is pinned at cpu\n"
    assert told(capsys, "unpin", "bert", "--place", "disk") == "bert is not pinned at disk any more\n"
    assert [(name, values) for name, values, _ in daemon.orders] == [
        ("pin", ("bert", "cpu")),
        ("load", ("bert", "cpu")),
        ("unpin", ("bert", "disk")),
    ]


def test_load_leaves_the_place_to_the_manifest_unless_one_is_named(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = answer(load=a_replica(place="gpu:0"))
    assert told(capsys, "load", "bert", "--deadline-s", "2.5") == "bert is at gpu:0: 2.0 KiB\n"
    ((_, values, named),) = daemon.orders
    assert (values, named["deadline_s"]) == (("bert", ""), 2.5)


def test_show_leaves_out_what_is_not_known_and_tells_each_replicas_story(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(show=replace(MODEL, replicas=(a_replica(story=("queued", "sealed")),)))
    lines = told(capsys, "show", "bert").splitlines()
    assert lines[:3] == ["model      bert 1.0.0", "framework  pytorch", "image      not converted yet"]
    assert lines[4].startswith("at cpu: sealed, 0 leases, opened 3 times, filled in 1.50 s, stays until room is needed")
    assert lines[5:] == ["  trims.segment", "  queued", "  sealed"]


def test_show_prints_no_line_and_no_letter_of_control_as_a_publisher_wrote_it(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(show=replace(MODEL, description="a\x1b[2J\nlicense    MIT", license="none\r"))
    lines = told(capsys, "show", "bert").splitlines()
    assert lines[1:4] == ["about      a\\x1b[2J", f"{'':11}license    MIT", "license    none\\r"]


def test_show_says_why_a_model_is_not_in_memory(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(show=replace(MODEL, in_memory="no: it is larger than shared memory"))
    assert "in memory  no: it is larger than shared memory" in told(capsys, "show", "bert").splitlines()


def test_list_says_where_a_model_is_sealed_and_how_to_register_the_first(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    replicas = (a_replica(place="gpu:0", state="filling"), a_replica(), a_replica(place="disk"))
    answer(models=[replace(MODEL, replicas=replicas)])
    row = told(capsys, "list").splitlines()[1]
    assert row.split() == ["bert", "1.0.0", "pytorch", "cpu,", "disk"]
    answer(models=[])
    assert told(capsys, "list") == "no models are registered; `trims add` registers one\n"


def test_list_tells_apart_what_cannot_be_read(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(models=[replace(MODEL, name="odd", manifest_json="", problem="/srv/odd.yaml: is not YAML"), MODEL])
    assert main(["list"]) == 0
    printed = capsys.readouterr()
    assert "bert" in printed.out
    assert "odd" not in printed.out
    assert printed.err == "odd cannot be read: /srv/odd.yaml: is not YAML\n"


def test_ps_as_json_is_a_list_of_replicas(answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]) -> None:
    answer(residents=Residents((a_replica(),), ()), transfers=[])
    (shown,) = json.loads(told(capsys, "ps", "--json"))["replicas"]
    assert (shown["place"], shown["names"]) == ("cpu", ["bert"])
    answer(residents=Residents((), ()), transfers=[])
    assert told(capsys, "ps") == "nothing is resident\n"


def test_watch_prints_a_line_a_change_with_names_or_the_beginning_of_the_key(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(watch=[CHANGE, replace(CHANGE, names=())])
    assert told(capsys, "watch").splitlines() == [
        "a, b at cpu: filling -> sealed (it was filled)",
        "0123456789abcdef at cpu: filling -> sealed (it was filled)",
    ]
    assert [json.loads(line)["new"] for line in told(capsys, "watch", "--json").splitlines()] == ["sealed", "sealed"]


def test_list_shows_what_each_version_is_opened_as_and_names_only_if_asked(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (
        replace(MODEL, version=version, versions=("1", "2"), reference=f"bert@{version}", aliases=aliases)
        for version, aliases in (("1", ("bert", "bert@stable")), ("2", ()))
    )
    answer(models=[one, two, replace(MODEL, name="other", versions=("1.0.0",), aliases=("other",))])
    header, first, second, third = told(capsys, "list").splitlines()
    assert "opened as" in header
    assert "bert, bert@stable" in first
    assert second.split()[:2] == ["bert", "2"]
    assert third.split()[:3] == ["other", "1.0.0", "other"]
    assert told(capsys, "list", "--names").split() == ["bert", "bert@1", "bert@2", "bert@stable", "other"]


def test_rm_removes_all_versions_only_if_that_is_said(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = answer(remove=())
    assert told(capsys, "rm", "bert@1") == "bert@1 is forgotten\n"
    assert told(capsys, "rm", "bert", "--all-versions") == "bert is forgotten\n"
    assert [named for _, _, named in daemon.orders] == [{"all_versions": False}, {"all_versions": True}]
