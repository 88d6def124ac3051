"""The child's half of a conversion: what it imports, carries out and answers."""

from __future__ import annotations

import json
import socket
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from format_plugins import build

from trims.core.errors import ArtifactNotFoundError, ConversionError, NotSupportedError
from trims.formats import plugins as registered
from trims.formats.base import Limits
from trims.formats.conversion.build import build_artifact
from trims.formats.conversion.child import Child
from trims.formats.conversion.child_process import MAX_MESSAGE_BYTES
from trims.image.modules_beside import load_name
from trims.image.reader import ImageView
from trims.process import messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def test_a_child_in_another_environment_sees_trims_and_nothing_else_of_ours(
    builders: Path, tmp_path: Path, other_python: Path
) -> None:
    found: Mapping[str, Any] = json.loads(build("sees", tmp_path / "made", builders, other_python).read_text())
    assert found["prefix"] == str(other_python.parent.parent)
    assert Path(found["trims"]) == Path(registered.__file__).parent.parent / "__init__.py"
    assert (found["numpy"], found["trims_client"], found["yaml"]) == (False, False, False)
    ours = {path for path in sys.path if "site-packages" in path}
    assert not ours.intersection(found["path"])


def test_a_package_of_ours_is_lent_to_another_environment_for_its_builder(tmp_path: Path, other_python: Path) -> None:
    target = tmp_path / "made"
    with pytest.raises(ConversionError, match=r"TypeError: .*DTYPE"):  # found and called, there
        build_artifact(
            "trims_client.weights:numpy_dtype", {"DTYPE": 1}, target, python=other_python, limits=Limits(time_s=60)
        )


class Conversation:
    """The parent's end of the socket of a child that serves in a thread of this process."""

    def __init__(self) -> None:
        self.socket, theirs = messages.pair()
        self._theirs = theirs
        self._serving = threading.Thread(target=Child(theirs).serve)
        self._serving.start()

    def hear(self) -> dict[str, Any]:
        received = messages.receive(self.socket, long_bytes=MAX_MESSAGE_BYTES)
        assert received is not None
        return received[0]

    def ask(self, message: dict[str, Any], *fds: int) -> dict[str, Any]:
        messages.send(self.socket, message, fds, long=True)
        return self.hear()

    def end(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)
        self._serving.join(60)
        assert not self._serving.is_alive()
        self.socket.close()
        self._theirs.close()


@pytest.fixture
def child() -> Iterator[Conversation]:
    made = Conversation()
    yield made
    made.end()


def plan_request(path: Path, **more: Any) -> dict[str, Any]:
    request = {"do": "plan", "converter": "trims.formats.numpy.npy:NpyConverter", "format": "npy", "files": [str(path)]}
    return {**request, "options": {}, **more}


def test_an_image_is_planned_and_written_into_the_descriptor_that_came(child: Conversation, tmp_path: Path) -> None:
    values = np.arange(3 << 20, dtype="<f4")
    np.save(tmp_path / "m.npy", values)
    answer = child.ask(plan_request(tmp_path / "m.npy"))
    assert answer["warnings"] == []
    with (tmp_path / "image").open("w+b") as file:
        file.truncate(answer["planned_bytes"])
        heard = [child.ask({"do": "write"}, file.fileno())]
        while "progress" in heard[-1]:
            heard.append(child.hear())
    assert heard[-1] == {"written": True}
    assert [each["progress"] for each in heard[:-1]][-1:] == [values.nbytes]
    view = ImageView(memoryview((tmp_path / "image").read_bytes()))
    (spec,) = view.layout
    assert bytes(view.tensor(spec.name)) == values.tobytes()


def test_a_refusal_is_an_answer_and_the_child_goes_on(child: Conversation, tmp_path: Path) -> None:
    refused = child.ask(plan_request(tmp_path / "missing.npy"))
    assert refused["error"] == ArtifactNotFoundError.code
    assert "missing.npy cannot be read" in refused["message"]
    assert child.ask({"do": "versions", "names": ["numpy"]}) == {"versions": {"numpy": np.__version__}}


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        ("ValueError('three')", "conversion", "m.x: ValueError: three"),
        ("KeyError('w')", "conversion", "m.x: KeyError: 'w'"),
        ("MemoryError('full')", "conversion", "m.x: MemoryError: full"),
        ("ModuleNotFoundError('no', name='mxnet')", "not_supported", "-m pip install mxnet"),
        ("OSError(24, 'Too many open files')", "capacity", "no descriptor left"),
        ("ArtifactError('x' * 100_000)", "bad_artifact", "x" * 10_000),
    ],
)
def test_what_a_converter_raises_crosses_the_socket(
    child: Conversation, plugins: Path, raised: str, code: str, words: str
) -> None:
    source = f"""
        from trims.core.errors import ArtifactError
        class Raises:
            def plan(self, artifact):
                raise {raised}
    """
    (plugins / "plugin_of_test_raises.py").write_text(textwrap.dedent(source))
    answer = child.ask(plan_request(Path("m.x"), converter="plugin_of_test_raises:Raises"))
    assert answer["error"] == code
    assert words in answer["message"]
    assert len(answer["message"]) <= 10_000
    assert answer.get("memory", False) is raised.startswith("MemoryError")


def test_warnings_of_a_converter_are_part_of_its_answer(child: Conversation, plugins: Path, tmp_path: Path) -> None:
    source = """
        import logging
        from trims.formats.numpy.npy import NpyConverter
        class Warns(NpyConverter):
            def plan(self, artifact):
                for number in range(30):
                    logging.getLogger("trims.plugin").warning("warning %d %s", number, "w" * 5000)
                return super().plan(artifact)
    """
    (plugins / "plugin_of_test_warns.py").write_text(textwrap.dedent(source))
    np.save(tmp_path / "m.npy", np.ones(1))
    warnings = child.ask(plan_request(tmp_path / "m.npy", converter="plugin_of_test_warns:Warns"))["warnings"]
    assert [text.split(" w")[0] for text in warnings] == [f"warning {number}" for number in range(20)]
    assert {len(text) for text in warnings} == {1000}


@pytest.mark.parametrize("name", ["no_such_package:x", "json:nothing", "json:JSONEncoder.nothing", "json"])
def test_a_name_that_cannot_be_imported_is_told_with_its_environment(name: str) -> None:
    with pytest.raises(NotSupportedError) as caught:
        load_name(name, "the builder")
    assert str(caught.value).startswith(f"the builder {name!r} cannot be loaded in {sys.prefix}: ")
    assert load_name("json:JSONEncoder.encode", "the builder") is json.JSONEncoder.encode
