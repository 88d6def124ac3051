"""The parent's half of a conversion: what a child answers, refuses or says with its end, and what is left of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from made_environments import put

from trims.core.errors import (
    ArtifactError,
    ConversionError,
    ImageError,
    InUseError,
    NotSupportedError,
    TrimsError,
)
from trims.environments.environment_store import EnvironmentStore
from trims.formats.base import Limits
from trims.formats.conversion.child_process import LimitedChild
from trims.testing.converters import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAYS = """
import json, os, sys
from pathlib import Path
from trims.core import errors
def raises(out_dir, name, text):
    raise getattr(errors, name)(text)
def exhausts(out_dir):
    held = []
    while True:
        held.append(bytearray(64 << 20))
def says(out_dir):
    (out_dir / "said").write_text(json.dumps(
        {"tmpdir": os.environ["TMPDIR"], "path": sys.path, "pythonpath": os.environ.get("PYTHONPATH"),
         "session": os.getsid(0) == os.getpid()}))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., LimitedChild]]:
    """Start a child that finds the functions above; closed, twice, after the test."""
    (tmp_path / "says_of_test.py").write_text(SAYS)
    made: list[LimitedChild] = []

    def begin(**settings: Any) -> LimitedChild:
        given = {"python": None, "limits": LIMITS, "extra_paths": [tmp_path], **settings}
        made.append(LimitedChild("m.bin", **given))
        return made[-1]

    yield begin
    for child in made:
        child.close()
        child.close()


def build(tmp_path: Path, function: str, **args: Any) -> dict[str, Any]:
    return {"do": "build", "call": f"says_of_test:{function}", "args": args, "out_dir": str(tmp_path)}


def test_one_child_answers_one_request_after_another(start: Callable[..., LimitedChild]) -> None:
    child = start()
    for names, found in ((["numpy"], {"numpy": np.__version__}), (["no-such-thing"], {})):
        assert child.request({"do": "versions", "names": names}) == {"versions": found}


def weight_of(child: LimitedChild) -> str:
    return Path(f"/proc/{child._child.pid}/autogroup").read_text().split()[-1]


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="the kernel does not group by session")
def test_a_child_gives_way_with_its_whole_session_until_a_request_waits(start: Callable[..., LimitedChild]) -> None:
    child = start()
    before, ours = weight_of(child), Path("/proc/self/autogroup").read_text()
    child.give_way(yes=True)
    child.request({"do": "versions", "names": []})  # in which the kernel takes what it has put off
    assert (before, weight_of(child)) == ("0", "10")
    child.give_way(yes=False)
    child.request({"do": "versions", "names": []})
    assert weight_of(child) == "0"
    assert Path("/proc/self/autogroup").read_text() == ours


def test_what_the_kernel_puts_off_is_told_to_it_again_while_an_answer_is_waited_for(
    start: Callable[..., LimitedChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    child, told = start(), []
    answers = iter([None, BlockingIOError(11, "Resource temporarily unavailable"), None])

    def weigh(pid: int, niceness: int) -> None:
        told.append((pid == child._child.pid, niceness))
        if (answer := next(answers)) is not None:
            raise answer

    monkeypatch.setattr("trims.process.child.weigh", weigh)
    child.give_way(yes=True)
    child.give_way(yes=False)
    child.request({"do": "versions", "names": []})
    child.request({"do": "versions", "names": []})
    assert told == [(True, 10), (True, 0), (True, 0)]


def test_a_kernel_without_groups_changes_nothing(
    start: Callable[..., LimitedChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    def weigh(pid: int, niceness: int) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("trims.process.child.weigh", weigh)
    child = start()
    child.give_way(yes=True)
    assert child.request({"do": "versions", "names": ["no-such-thing"]}) == {"versions": {}}
    child.close()
    child.give_way(yes=False)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("ArtifactError", ArtifactError),
        ("ImageError", ImageError),
        ("NotSupportedError", NotSupportedError),
        ("InternalError", ConversionError),
        ("DaemonAwayError", ConversionError),
    ],
)
def test_a_refusal_keeps_its_words_and_its_class_if_a_converter_may_have_it(
    start: Callable[..., LimitedChild], tmp_path: Path, raised: str, kind: type[TrimsError]
) -> None:
    with pytest.raises(TrimsError) as caught:
        start().request(build(tmp_path, "raises", name=raised, text="the words"))
    assert type(caught.value) is kind
    assert str(caught.value) == "the words"


def test_a_child_that_exceeds_its_memory_is_told_with_the_limit(
    start: Callable[..., LimitedChild], tmp_path: Path
) -> None:
    child = start(limits=Limits(memory_bytes=512 << 20, time_s=100.0))
    with pytest.raises(
        ConversionError,
        match=r"m\.bin: .* its memory limit of 512\.0 MiB \(raise the setting converter_memory_bytes\): ",
    ):
        child.request(build(tmp_path, "exhausts"))


def test_a_child_has_a_session_and_a_temporary_folder_of_its_own_which_goes_with_it(
    start: Callable[..., LimitedChild], tmp_path: Path
) -> None:
    child = start()
    child.request(build(tmp_path, "says"))
    said = json.loads((tmp_path / "said").read_text())
    assert said["session"]
    assert said["path"][0] == str(tmp_path)
    assert Path(said["tmpdir"]).is_dir()
    child.close()
    assert not Path(said["tmpdir"]).exists()


def test_a_child_of_another_environment_gets_no_python_path_of_this_one(
    start: Callable[..., LimitedChild], tmp_path: Path, other_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/ours")
    start(python=other_python).request(build(tmp_path, "says"))
    said = json.loads((tmp_path / "said").read_text())
    assert said["pythonpath"] is None
    assert "/of/ours" not in said["path"]


def test_a_made_environment_is_not_removed_while_a_child_runs_in_it(
    start: Callable[..., LimitedChild], tmp_path: Path
) -> None:
    made, env_store = put(tmp_path / "environments", numpy="1.0"), EnvironmentStore(tmp_path / "environments")
    child = start(python=made.python)
    assert child.request({"do": "versions", "names": ["numpy"]}) == {"versions": {"numpy": "1.0"}}
    with pytest.raises(InUseError, match=f"{made.name} is in use by"):
        env_store.remove(made.name)
    child.close()
    env_store.remove(made.name)
    with pytest.raises(NotSupportedError, match=f"no converter can be started with {made.python}"):
        start(python=made.python)


def test_a_cancelled_child_says_the_first_reason_it_was_given(start: Callable[..., LimitedChild]) -> None:
    child = start()
    child.cancel("the daemon is shutting down")
    child.cancel("another reason")
    with pytest.raises(ConversionError, match=r"m\.bin: its conversion was stopped: the daemon is shutting down$"):
        child.request({"do": "versions", "names": []})


def test_time_is_counted_over_all_requests_of_a_child(start: Callable[..., LimitedChild]) -> None:
    child = start(limits=Limits(time_s=1000.0))
    child.request({"do": "versions", "names": ["numpy"]})
    assert 0 < child._left_s < 1000.0
    child._left_s = 0.0
    with pytest.raises(ConversionError, match=r"m\.bin: not done within the time limit of 1000 s"):
        child.request({"do": "versions", "names": ["numpy"]})


def test_an_interpreter_that_is_no_program_is_named(start: Callable[..., LimitedChild], tmp_path: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(NotSupportedError, match=rf"m\.bin: no converter can be started with {tmp_path}/python: "):
        start(python=tmp_path / "python")
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("value", [None, -1, 1 << 50, 1.0, True, "7"])
def test_a_size_that_cannot_be_one_is_not_believed(start: Callable[..., LimitedChild], value: object) -> None:
    child = start()
    assert child.size_of({"planned_bytes": 7}, "planned_bytes") == 7
    with pytest.raises(ConversionError, match=r"m\.bin: the child process sent planned_bytes = "):
        child.size_of({"planned_bytes": value}, "planned_bytes")


def test_a_request_and_an_answer_may_be_longer_than_a_packet(start: Callable[..., LimitedChild]) -> None:
    names = ["numpy", *("n" * 1000 + str(number) for number in range(1000))]
    assert start().request({"do": "versions", "names": names}) == {"versions": {"numpy": np.__version__}}
