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

from trims.core.errors import (
    CallerError,
    InUseError,
    ManifestError,
    ModelExistsError,
    ModelNotFoundError,
    TrimsError,
)
from trims.manifests.manifest import parse_manifest
from trims.plugins import Choice
from trims.registry.base import Registry
from trims.registry.opening import open_registry
from trims.registry.versions import Alias, Entry, Versions

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
        keeps_versions: Versions of a model lie side by side, with aliases; false for a `ManifestRegistry`.
    """

    survives_restart = True
    keeps_versions = True

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
            _nudge(other)
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
            _nudge(one)
            _nudge(two)
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

    # -- versions --------------------------------------------------------------------------------------------------

    @pytest.fixture
    def versions(self, registry: Registry) -> Registry:
        """Return a registry with the versions 1 and 2 of the model `m`; the plain name leads to 1."""
        if not self.keeps_versions:
            pytest.skip("it keeps one version of each model")
        for version in ("1", "2"):
            registry.put(manifest(version=version, description=f"of {version}"), "/a")
        return registry

    def test_a_model_with_one_version_is_found_by_its_name_and_by_that_version(self, registry: Registry) -> None:
        registry.put(manifest(version="1"), "")
        for reference in ("m", "m@1"):
            assert registry.find(reference) == Entry("m", registry.get("m"))
            assert registry.raw(reference) == manifest(version="1")
        assert registry.versions("m") == Versions("m", ("1",), {"": Alias("1")})
        assert registry.rows() == ["m"]
        for ask in (registry.get, registry.raw, registry.find, registry.remove_version):
            with pytest.raises(ModelNotFoundError, match="'m' has no version or label '2'; it has the version 1"):
                ask("m@2")
        registry.remove_version("m@1")
        assert registry.names() == registry.rows() == []

    def test_a_manifest_without_a_version_has_one_by_which_it_is_found(self, registry: Registry) -> None:
        registry.put(manifest(), "")
        assert registry.find("m@0.0.0") == registry.find("m")

    def test_one_version_replaces_another_if_replace_is_said(self, registry: Registry) -> None:
        registry.put(manifest(version="1"), "")
        registry.put(manifest(version="2"), "", replace=True)
        assert registry.versions("m").registered == ("2",)
        assert registry.find("m").manifest.version == "2"

    def test_another_version_is_registered_beside_and_the_plain_name_leads_where_it_led(
        self, versions: Registry
    ) -> None:
        assert [versions.get(each).description for each in ("m", "m@1", "m@2")] == ["of 1", "of 1", "of 2"]
        assert [versions.find(each).row for each in ("m", "m@1", "m@2")] == ["m@1", "m@1", "m@2"]
        assert versions.names() == ["m"]
        assert versions.rows() == ["m@1", "m@2"]
        versions.put(manifest(version="1", description="of 1"), "/a")
        with pytest.raises(ModelExistsError, match="'m@2' is registered with another manifest"):
            versions.put(manifest(version="2", description="other"), "/a")

    def test_replace_takes_the_place_of_the_same_version_else_of_that_of_the_plain_name(
        self, versions: Registry
    ) -> None:
        versions.put(manifest(version="2", description="new"), "/b", replace=True)
        assert [versions.get(each).description for each in ("m", "m@2")] == ["of 1", "new"]
        versions.switch("m", "stable", "1")
        versions.put(manifest(version="3", description="of 3"), "", replace=True)
        assert versions.versions("m").registered == ("3", "2")
        assert [versions.get(each).description for each in ("m", "m@stable", "m@2")] == ["of 3", "of 3", "new"]

    def test_an_alias_is_switched_and_switched_back(self, versions: Registry) -> None:
        switched = versions.switch("m", "", "2")
        assert switched == versions.versions("m") == Versions("m", ("1", "2"), {"": Alias("2", "1")})
        assert (versions.get("m").description, versions.rows()) == ("of 2", ["m@2", "m@1"])
        for version in ("1", "2"):
            assert versions.switch("m", "", "").default == version
            assert versions.get("m").version == version

    def test_a_label_is_made_moved_and_removed(self, versions: Registry) -> None:
        versions.switch("m", "stable", "1")
        assert versions.get("m@stable").version == "1"
        versions.switch("m", "stable", "2")
        assert versions.get("m@stable").version == "2"
        assert versions.remove_label("m", "stable").aliases == {"": Alias("1")}
        with pytest.raises(ModelNotFoundError, match="no version or label 'stable'"):
            versions.get("m@stable")
        with pytest.raises(ModelNotFoundError, match="no label 'stable'"):
            versions.remove_label("m", "stable")

    def test_what_cannot_be_switched_is_refused_and_changes_nothing(self, versions: Registry) -> None:
        versions.switch("m", "stable", "1")
        before = versions.versions("m")
        for error, label, version in (
            (ModelNotFoundError, "", "3"),
            (ModelNotFoundError, "stable", "stable"),
            (CallerError, "2", "1"),
            (CallerError, "no label", "1"),
            (CallerError, "@", "1"),
            (CallerError, "stable", ""),
            (CallerError, "", ""),
        ):
            with pytest.raises(error):
                versions.switch("m", label, version)
        with pytest.raises(CallerError, match="the plain name 'm' always leads to a version"):
            versions.remove_label("m", "")
        with pytest.raises(CallerError, match="has a label 'stable', so no version may be called so"):
            versions.put(manifest(version="stable"), "")
        with pytest.raises(ModelNotFoundError, match="no model 'other'"):
            versions.switch("other", "", "1")
        assert versions.versions("m") == before
        assert versions.rows() == ["m@1", "m@2"]

    def test_a_version_is_removed_unless_an_alias_leads_to_it(self, versions: Registry) -> None:
        versions.switch("m", "", "2")
        versions.switch("m", "", "1")
        for refused, why in (("m", "has the versions 1, 2"), ("m@1", "m@1 is what m leads to")):
            with pytest.raises(InUseError, match=why):
                versions.remove_version(refused)
        versions.switch("m", "stable", "2")
        with pytest.raises(CallerError, match="'stable' is a label of 'm'"):
            versions.remove_version("m@stable")
        versions.remove_label("m", "stable")
        versions.remove_version("m@2")
        assert versions.versions("m") == Versions("m", ("1",), {"": Alias("1")})
        assert versions.find("m").row == "m"
        with pytest.raises(CallerError, match="cannot be switched back"):
            versions.switch("m", "", "")

    def test_a_model_goes_with_all_its_versions_if_that_is_said(self, versions: Registry) -> None:
        versions.switch("m", "stable", "2")
        with pytest.raises(CallerError, match="'m@1' names a version"):
            versions.remove_version("m@1", every=True)
        versions.remove_version("m", every=True)
        assert versions.names() == versions.rows() == []
        versions.put(manifest(version="9"), "")
        assert versions.versions("m") == Versions("m", ("9",), {"": Alias("9")})

    def test_a_switch_outlives_the_process(self, versions: Registry, place: Path) -> None:
        versions.switch("m", "", "2")
        versions.switch("m", "stable", "1")
        before = versions.versions("m")
        versions.close()
        again = self.open(place)
        assert not self.survives_restart or again.versions("m") == before
        again.close()

    def test_of_switches_at_once_each_is_whole_and_readers_see_one_version(self, versions: Registry) -> None:
        errors: list[BaseException] = []

        def switch() -> None:
            for number in range(20):
                versions.switch("m", "", str(1 + number % 2))

        def read() -> None:
            for _ in range(40):
                entry = versions.find("m")
                assert entry.row == f"m@{entry.manifest.version}"
                assert entry.manifest.description == f"of {entry.manifest.version}"

        _run_side_by_side([switch, switch, read, read], errors)
        assert errors == []
        assert versions.versions("m").aliases[""].previous in ("1", "2")

    def test_a_process_that_is_killed_while_it_switches_leaves_one_of_the_versions(self, place: Path) -> None:
        if not self.survives_restart or not self.keeps_versions:
            pytest.skip("manifests go with the process, or have one version")
        for switches in (1, 2, 5):
            with self.process(place, "switches") as writer:
                reported = [_line(writer) for _ in range(switches)]
                writer.kill()
                writer.wait(WAIT_S)
            registry = self.open(place)
            assert registry.versions("m").registered == ("1", "2")
            assert registry.get("m").version in ("1", "2")
            assert reported[-1] in ("1", "2")
            registry.close()

    def test_another_process_sees_a_switch_at_once(self, versions: Registry, place: Path) -> None:
        if not self.survives_restart:
            pytest.skip("manifests are the process's own")
        with self.process(place, "shows") as other:
            assert _line(other) == "1"
            versions.switch("m", "", "2")
            _nudge(other)
            assert _line(other) == "2"

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
elif what == "switches":
    for version in ("1", "2"):
        registry.put(manifest(version=version), "")
    number = 0
    while True:
        number += 1
        say(registry.switch("m", "", str(1 + number % 2)).default)
elif what == "shows":
    say(registry.get("m").version)
    sys.stdin.readline()
    say(registry.get("m").version)
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


def _nudge(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


def _descriptors() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return found
