"""The contract every registry keeps, as an inheritable suite.

A plug-in's tests subclass `RegistryContract` and say what the setting `registry` says. The plug-in must be installed:
the suite opens it as the daemon does, in this process and in others.
"""

from __future__ import annotations

import contextlib
import json
import os
import string
import subprocess
import sys
import threading
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import ManifestError, ModelExistsError, ModelNotFoundError, TrimsError
from trims.manifests.manifest import parse_manifest
from trims.plugins import Choice
from trims.registry.base import Registry
from trims.registry.opening import open_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAIT_S = 100
_LONG = "long " * 2_000
#: Texts that a careless writer of YAML, of JSON, or of a table would read back as something else.
ODD_VALUES: dict[str, Any] = {
    "words": ["yes", "null", "~", "1e3", "0o17", "2020-01-01", "", " ", "#", "a: b", "- a", "'", '"', "\\", "%", "&a"],
    "lines": "one\n two\r\n\tthree\n\n",
    "signs": "\u00e4\u20ac\U0001f600\u0000\u0007\u2028\ufeff",
    "numbers": [0, -1, 1 << 62, 0.1, 1e300, -1e-300, 1.0],
    "nothing": [None, True, False, [], {}],
    "key with: colon": {"": {"deep": [[["x"]]]}},
}


def manifest(name: str = "m", **more: object) -> dict[str, Any]:
    """Return a manifest of that name."""
    return {"name": name, "artifact": {"path": "m.npz"}, **more}


class RegistryContract:
    """Subclass it as `TestMyRegistry` and provide `setting`.

    Attributes:
        survives_restart: What was put is there for the next process, and for others at once.
    """

    survives_restart = True

    def setting(self, folder: Path) -> str:
        """Return the setting `registry` for manifests in a folder; the same folder has the same manifests."""
        raise NotImplementedError

    def open(self, folder: Path) -> Registry:
        """Return the registry as the daemon opens it."""
        return open_registry(Choice.parse(self.setting(folder)), folder)

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """Return a folder of the test's own."""
        place = tmp_path / "place"
        place.mkdir()
        return place

    @pytest.fixture
    def registry(self, place: Path) -> Iterator[Registry]:
        """Yield a registry without models."""
        made = self.open(place)
        yield made
        made.close()

    def test_it_is_a_registry_that_says_whether_it_changes_outside(self, registry: Registry) -> None:
        assert isinstance(registry, Registry)
        assert type(registry.changes_outside) is bool
        assert registry.names() == []

    def test_what_was_put_is_got_with_its_origin(self, registry: Registry) -> None:
        for origin in ("", "/models", "/with a blank/and '\"#: signs/\u00e4"):
            put = registry.put(manifest(version="1.0.0"), origin, replace=True)
            assert registry.get("m") == put == parse_manifest(manifest(version="1.0.0"), origin)
            assert registry.get("m").origin == origin

    def test_the_manifest_is_given_back_as_it_was_put(self, registry: Registry) -> None:
        for value in (ODD_VALUES, *({key: each} for key, each in ODD_VALUES.items()), {"text": _LONG}):
            raw = manifest(attributes=value, description="\n".join(value))
            registry.put(raw, "/a", replace=True)
            assert registry.raw("m") == raw
            assert json.dumps(registry.raw("m"), sort_keys=True) == json.dumps(raw, sort_keys=True)
            assert registry.get("m") == parse_manifest(raw, "/a")

    def test_the_same_manifest_twice_is_fine_and_another_needs_replace(self, registry: Registry) -> None:
        registry.put(manifest(description="one"), "/a")
        registry.put(dict(reversed(manifest(description="one").items())), "/a")
        for other, origin in ((manifest(description="two"), "/a"), (manifest(description="one"), "/b")):
            with pytest.raises(ModelExistsError, match="'m' is registered with another manifest"):
                registry.put(other, origin)
        assert registry.get("m") == parse_manifest(manifest(description="one"), "/a")
        registry.put(manifest(description="two"), "/b", replace=True)
        assert registry.get("m") == parse_manifest(manifest(description="two"), "/b")

    def test_a_refused_manifest_changes_nothing(self, registry: Registry) -> None:
        registry.put(manifest(), "")
        for bad in (manifest(colour="red"), {"name": "m"}, {**manifest(), "name": "../m"}, {}):
            with pytest.raises(ManifestError):
                registry.put(bad, "", replace=True)
        assert (registry.names(), registry.raw("m")) == (["m"], manifest())

    @pytest.mark.parametrize("value", [date(2020, 1, 1), float("nan"), float("inf"), {1}, b"x"], ids=repr)
    def test_a_value_json_cannot_carry_is_refused_with_the_remedy(self, registry: Registry, value: object) -> None:
        registry.put(manifest(), "")
        with pytest.raises(ManifestError, match=r"m: holds a value JSON cannot carry.*quote it"):
            registry.put(manifest(attributes={"since": value}), "", replace=True)
        assert registry.raw("m") == manifest()

    def test_an_unknown_name_is_told_the_nearest(self, registry: Registry) -> None:
        registry.put(manifest("resnet50"), "")
        for ask in (registry.get, registry.raw, registry.remove):
            with pytest.raises(ModelNotFoundError, match=r"no model 'resnet51' .*did you mean resnet50\?"):
                ask("resnet51")
            with pytest.raises(ModelNotFoundError, match=r"no model 'zzz' .*`trims add` registers one"):
                ask("zzz")

    @pytest.mark.parametrize("name", ["", ".", "..", "../m", "/m", "m/", "M", "a b", "m\0", "file:/m", "x" * 5000])
    def test_what_can_be_no_name_is_an_unknown_one(self, registry: Registry, name: str) -> None:
        registry.put(manifest(), "")
        for ask in (registry.get, registry.raw, registry.remove):
            with pytest.raises(ModelNotFoundError):
                ask(name)
        assert registry.names() == ["m"]

    def test_names_are_sorted_and_go_when_they_are_removed(self, registry: Registry) -> None:
        for name in "bca":
            registry.put(manifest(name), "")
        assert registry.names() == ["a", "b", "c"]
        registry.remove("b")
        assert registry.names() == ["a", "c"]
        for ask in (registry.get, registry.raw, registry.remove):
            with pytest.raises(ModelNotFoundError):
                ask("b")
        registry.put(manifest("b", description="again"), "")
        assert registry.get("b").description == "again"

    def test_every_allowed_name_is_a_name_of_its_own(self, registry: Registry) -> None:
        every = string.ascii_letters + string.digits + "._-"
        names = [
            "a",
            "A",
            "TestModel",
            "a.yaml",
            "a.yml",
            "a.json",
            "a.db",
            "a-",
            "a_",
            "a.",
            f"0{every}0",
            "9" * 128,
            "null",
            "true",
            "1e3",
        ]
        names = sorted(name if name[-1].isalnum() else f"{name}z" for name in names)
        for name in names:
            registry.put(manifest(name, description=f"of {name}"), "")
        assert registry.names() == names
        assert [registry.get(name).description for name in names] == [f"of {name}" for name in names]

    def test_a_thousand_models_are_kept_apart(self, registry: Registry) -> None:
        names = [f"m{number:04}" for number in range(1000)]
        for name in reversed(names):
            registry.put(manifest(name, description=name), "")
        assert registry.names() == names
        assert all(registry.get(name).description == name for name in names)

    def test_of_threads_that_put_one_new_name_exactly_one_wins(self, registry: Registry) -> None:
        begin, won, errors = threading.Barrier(6), list[int](), list[BaseException]()

        def work(number: int) -> None:
            begin.wait(WAIT_S)
            try:
                registry.put(manifest(description=str(number)), "")
                won.append(number)
            except ModelExistsError:
                return

        _run_side_by_side([partial(work, number) for number in range(6)], errors)
        assert errors == []
        assert [registry.get("m").description] == [str(number) for number in won]

    def test_readers_beside_writers_see_whole_manifests(self, registry: Registry) -> None:
        registry.put(_doubled(0), "")
        errors: list[BaseException] = []

        def write(first: int) -> None:
            for number in range(first, first + 20):
                registry.put(_doubled(number), "", replace=True)

        def read() -> None:
            for _ in range(40):
                _number_in(registry.raw("m"))
                assert registry.get("m").name == "m"
                assert registry.names() == ["m"]

        _run_side_by_side([lambda: write(0), lambda: write(100), read, read], errors)
        assert errors == []

    def test_the_next_process_finds_what_was_put_if_the_registry_promises_it(
        self, registry: Registry, place: Path
    ) -> None:
        put = registry.put(manifest("kept", attributes={"a": [1, {"b": None}]}), "/models")
        registry.put(manifest("gone"), "")
        registry.remove("gone")
        registry.close()
        again = self.open(place)
        assert again.names() == (["kept"] if self.survives_restart else [])
        assert not self.survives_restart or again.get("kept") == put
        again.close()

    def test_a_writer_that_is_killed_leaves_the_old_manifest_or_the_new(self, place: Path) -> None:
        if not self.survives_restart:
            pytest.skip("manifests go with the process")
        for puts in (1, 2, 3, 5, 8):
            with self.process(place, "forever") as writer:
                reported = [int(_line(writer)) for _ in range(puts)]
                writer.kill()
                writer.wait(WAIT_S)
            registry = self.open(place)
            assert registry.names() == ["m"]
            assert _number_in(registry.raw("m")) >= reported[-1]
            registry.put(manifest(), "", replace=True)
            assert registry.raw("m") == manifest()
            registry.close()

    def test_another_process_sees_each_change_and_its_own_are_seen(self, registry: Registry, place: Path) -> None:
        if not self.survives_restart:
            pytest.skip("manifests are the process's own")
        registry.put(manifest("ours"), "")
        with self.process(place, "adds", "theirs") as other:
            assert _line(other) == "['ours', 'theirs']"
            assert registry.names() == ["ours", "theirs"]
            registry.remove("ours")
            _tell(other)
            assert _line(other) == "['theirs']"

    def test_what_another_process_has_replaced_is_got_at_the_next_look(self, registry: Registry, place: Path) -> None:
        if not self.survives_restart:
            pytest.skip("manifests are the process's own")
        registry.put(manifest(description="old"), "")
        assert registry.get("m").description == "old"
        with self.process(place, "replaces", "new") as other:
            assert _line(other) == "replaced"
        assert registry.get("m").description == registry.raw("m")["description"] == "new"

    def test_a_manifest_that_a_caller_changes_is_kept_as_it_was(self, registry: Registry) -> None:
        given = manifest(attributes={"a": [1]})
        registry.put(given, "")
        for mine in (given, registry.raw("m")):
            mine["attributes"]["a"].append(2)
            assert registry.raw("m") == manifest(attributes={"a": [1]})

    def test_of_processes_that_put_one_new_name_exactly_one_wins(self, place: Path) -> None:
        if not self.survives_restart:
            pytest.skip("manifests are the process's own")
        with self.process(place, "race", "one") as one, self.process(place, "race", "two") as two:
            assert [_line(each) for each in (one, two)] == ["ready", "ready"]
            _tell(one)
            _tell(two)
            won = {text: _line(each) for text, each in (("one", one), ("two", two))}
        assert sorted(won.values()) == ["ModelExistsError", "kept"]
        registry = self.open(place)
        assert won[registry.get("m").description] == "kept"
        registry.close()

    def test_no_descriptor_is_kept_for_calls_and_none_after_the_end(self, place: Path) -> None:
        before = _descriptors()
        registry = self.open(place)
        registry.put(manifest(), "")
        used = len(_descriptors())
        for _ in range(50):
            registry.put(manifest(), "", replace=True)
            registry.get("m")
            with contextlib.suppress(TrimsError):
                registry.get("absent")
            with contextlib.suppress(TrimsError):
                registry.put(manifest(colour="red"), "")
        assert len(_descriptors()) <= used
        registry.close()
        assert _descriptors() <= before

    def test_closing_twice_is_fine(self, registry: Registry) -> None:
        registry.close()
        registry.close()

    @contextlib.contextmanager
    def process(self, place: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Start another process with the same registry; see `_OTHER`."""
        path = os.pathsep.join(path for path in sys.path if path)
        command = [sys.executable, "-c", _OTHER, self.setting(place), str(place), *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, env={**os.environ, "PYTHONPATH": path}, **pipes)  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()
            process.communicate(timeout=WAIT_S)


_OTHER = """
import sys
from pathlib import Path
from trims.plugins import Choice
from trims.registry.opening import open_registry
from trims.testing.registries import _doubled, manifest
setting, place, what, *words = sys.argv[1:]
registry = open_registry(Choice.parse(setting), Path(place))
say = lambda text: print(text, flush=True)
if what == "forever":
    number = 0
    while True:
        number += 1
        registry.put(_doubled(number), "", replace=True)
        say(number)
elif what == "adds":
    registry.put(manifest(words[0]), "")
    say(registry.names())
    sys.stdin.readline()
    say(registry.names())
elif what == "replaces":
    registry.put(manifest(description=words[0]), "", replace=True)
    say("replaced")
elif what == "race":
    say("ready")
    sys.stdin.readline()
    try:
        registry.put(manifest(description=words[0]), "")
        say("kept")
    except Exception as error:
        say(type(error).__name__)
registry.close()
"""


def _doubled(number: int) -> dict[str, Any]:
    """Return a manifest that is longer than a page, and says the same at both ends."""
    return manifest(attributes={"first": number, "long": _LONG, "second": number})


def _number_in(raw: dict[str, Any]) -> int:
    """Return the number in a manifest of `_doubled`, which must be whole."""
    number = raw["attributes"]["first"]
    assert isinstance(number, int)
    assert raw == _doubled(number)
    return number


def _run_side_by_side(work: list[Callable[[], None]], errors: list[BaseException]) -> None:
    def run(each: Callable[[], None]) -> None:
        try:
            each()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line.rstrip("\n")


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


def _descriptors() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return found
