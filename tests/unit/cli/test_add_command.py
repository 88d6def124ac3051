"""The command `add`: what is asked of the daemon, and how its answer is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from operators import MODEL, REPLICA, Operator

from trims.cli import add_command
from trims.cli.main import main
from trims.control.stated_fields import FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable


BERT = replace(MODEL, manifest_json='{"name": "bert", "artifact": {"path": "/m.onnx"}}')


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Operator]:
    """Have a daemon that gives these answers."""

    def given(**answers: Any) -> Operator:
        made = Operator(**answers)
        monkeypatch.setattr(add_command, "admin", made.admin)
        return made

    return given


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["add", "register"])
def test_add_and_register_are_one_command(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    daemon = answer(add=BERT)
    assert told(capsys, command, "m.yaml", "--replace", "--lazy") == "registered bert\n"
    ((name, values, named),) = daemon.orders
    assert (name, values) == ("add", (Path("m.yaml"),))
    assert {key: named[key] for key in ("name", "replace", "lazy")} == {"name": None, "replace": True, "lazy": True}


def test_add_tells_the_images_size_unless_it_was_not_converted(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    on_disk = replace(REPLICA, place="disk", state="sealed")
    answer(add=replace(BERT, image_bytes=2048, replicas=(on_disk,)))
    for words, err in ((["add", "m"], "bert: image of 2.0 KiB on disk\n"), (["add", "m", "--lazy"], "")):
        assert main(words) == 0
        assert capsys.readouterr().err == err


def test_add_says_what_a_version_lies_beside_and_how_to_switch_to_it(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    second = replace(BERT, version="2", versions=("1", "2"), reference="bert@2")
    answer(add=second)
    told_of = "registered bert 2 beside 1; bert leads where it led, until `trims alias bert 2`\n"
    assert told(capsys, "add", "m.yaml", "--lazy") == told_of
    answer(add=replace(second, aliases=("bert",)))
    assert told(capsys, "add", "m.yaml", "--lazy") == "registered bert 2 beside 1; bert leads to it\n"


#: Flag -> a value, and the fields that it states.
STATED: dict[str, tuple[str | None, dict[str, Any]]] = {
    "--version": ("1.10", {"version": "1.10"}),
    "--place": ("disk", {"residency": {"place": "disk"}}),
    "--instances": ("2", {"predictor": {"instances": 2}}),
    "--threads": ("3", {"predictor": {"threads": 3}}),
    "--hot": ("1", {"predictor": {"hot": 1}}),
    "--deadline": ("1.5", {"predictor": {"deadline_s": 1.5}}),
    "--keep-alive": ("0", {"predictor": {"keep_alive_s": 0}}),
    "--max-batch-size": ("8", {"predictor": {"max_batch_size": 8}}),
    "--batch-delay": ("0.01", {"predictor": {"batch_delay_s": 0.01}}),
    "--truncate": (None, {"predictor": {"options": {"truncation": True}}}),
    "--option": ("top_k=[1, b]", {"predictor": {"options": {"top_k": [1, "b"]}}}),
    "--artifact-option": ("prepack=shared", {"artifact": {"options": {"prepack": "shared"}}}),
}


@pytest.mark.parametrize("flag", FLAGS.values())
def test_a_flag_states_its_field(answer: Callable[..., Operator], flag: str) -> None:
    daemon = answer(add=BERT)
    value, fields = STATED[flag]
    assert main(["add", "m", "--lazy", flag, *([value] if value is not None else [])]) == 0
    assert daemon.orders[0][2]["fields"] == fields


def test_flags_of_one_part_of_a_manifest_go_together_and_none_states_nothing(answer: Callable[..., Operator]) -> None:
    daemon = answer(add=BERT)
    words = ["--deadline", "soon", "--truncate", "--option", "top_k=3", "--option", "prompt='a: b=c'"]
    assert main(["add", "m", "--lazy", *words]) == 0
    options = {"top_k": 3, "prompt": "a: b=c", "truncation": True}
    assert daemon.orders[0][2]["fields"] == {"predictor": {"deadline_s": "soon", "options": options}}
    assert main(["add", "m", "--lazy"]) == 0
    assert daemon.orders[1][2]["fields"] == {}


@pytest.mark.parametrize("stated", [["top_k"], ["=3"], ["top_k=1", "--option", "top_k=2"], ["top_k=["]])
def test_an_option_that_is_none_is_refused(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str], stated: list[str]
) -> None:
    daemon = answer(add=BERT)
    assert main(["add", "m", "--option", *stated]) == 1
    assert "--option" in capsys.readouterr().err
    assert daemon.orders == []


@pytest.mark.parametrize(("value", "code"), [("false", 1), ("'no'", 1), ("true", 0)])
def test_truncate_beside_an_option_that_says_another_thing_is_refused(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str], value: str, code: int
) -> None:
    daemon = answer(add=BERT)
    assert main(["add", "m", "--lazy", "--truncate", "--option", f"truncation={value}"]) == code
    assert ("--truncate" in capsys.readouterr().err) == bool(code)
    assert len(daemon.orders) == 1 - code


@pytest.mark.parametrize(
    "words", [["--task", "fill-mask"], ["--prove", "first"], ["--trust-remote-code"], ["--state-key", "net"]]
)
def test_flags_of_artifacts_beside_a_function_are_refused(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    answer(add=BERT)
    assert main(["add", "f.py", "--model", "m", *words]) == 1
    assert f"{words[0]} is for an artifact, and f.py is a function" in capsys.readouterr().err
