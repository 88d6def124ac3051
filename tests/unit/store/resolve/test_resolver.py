"""From a name to an image key: what changes it, what does not, and what is said when there is none."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from made_environments import put as make_environment
from safetensors.numpy import save_file

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    DigestMismatchError,
    ManifestError,
    ModelNotFoundError,
    NotSupportedError,
)
from trims.environments.environment_store import EnvironmentStore
from trims.formats.base import Limits
from trims.formats.conversion.interpreter_selection import InterpreterSelection
from trims.manifests.manifest import parse_manifest
from trims.registry.sqlite import SqliteRegistry
from trims.store.catalog import ImageRecord
from trims.store.resolve import artifacts, file_digests, hashing
from trims.store.resolve import resolver as resolve
from trims.store.resolve.hashing import DigestNeededError
from trims.store.resolve.resolved import text_of
from trims.store.resolve.resolver import Resolver

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.registry.versions import Entry
    from trims.store.catalog import Catalog
    from trims.store.resolve.hashing import Reading
    from trims.store.resolve.resolved import Resolved


@pytest.fixture
def resolver(folder: Path, registry: SqliteRegistry, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Resolver:
    """One that looks at files each time it is asked."""
    monkeypatch.setattr(resolve, "_TRUST_S", 0.0)
    return Resolver(registry, catalog, InterpreterSelection(), folder / "artifacts", Limits(time_s=60.0))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read for their digest."""
    seen: list[str] = []
    real = hashing.read_digests

    def read(file: Path, *how: Any) -> hashing.Digests:
        seen.append(file.name)
        return real(file, *how)

    monkeypatch.setattr(hashing, "read_digests", read)
    return seen


def put(registry: SqliteRegistry, artifact: dict[str, Any], origin: str = "", **more: Any) -> None:
    registry.put({"name": "m", "artifact": artifact, **more}, origin, replace=True)


def a_builder(folder: Path, registry: SqliteRegistry, code: str, name: str = "m") -> Path:
    """A manifest in a folder of its own, whose builder lies there; the builder's file."""
    folder.mkdir(exist_ok=True)
    (folder / "mods.py").write_text(code)
    artifact = {"path": str(folder.parent / "m.safetensors"), "options": {"module": "mods:build"}}
    registry.put({"name": name, "artifact": artifact}, str(folder), replace=True)
    return folder / "mods.py"


@pytest.mark.parametrize("digest", [False, True])
def test_a_look_from_before_a_conversion_was_needed_is_not_believed(
    digest: bool, registry: SqliteRegistry, catalog: Catalog, checkpoint: Callable[..., Path], folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    checkpoint("m").chmod(0o644)
    put(registry, {"path": str(folder / "m.safetensors")})
    resolver = Resolver(registry, catalog, InterpreterSelection(), folder / "artifacts", Limits(), in_place=True)
    look = resolver._artifacts._look

    def looked_meanwhile(*given: Any) -> resolve.Resolved:
        found = look(*given)
        resolver.needs_conversion("m", str(found.in_place), "its header lies")
        return found

    monkeypatch.setattr(resolver._artifacts, "_look", looked_meanwhile)
    if digest:
        found = resolver.resolve("m", resolve.Reading(digest=True))
        assert (found.in_place, found.why_not) == (None, "its header lies")
    else:
        with pytest.raises(DigestNeededError):
            resolver.resolve("m", resolve.Reading(digest=False))


def test_a_path_that_is_looked_at_again_is_forgotten_after_one_that_is_not(
    resolver: Resolver, catalog: Catalog, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims.store.catalog._MOST_PATHS", 2)
    names = [f"file:{checkpoint(name)}" for name in ("a", "b", "c")]
    for name in (names[0], names[1], names[0], names[2]):
        resolver.resolve(name)
    assert [catalog.key_of(name) is None for name in names] == [False, True, False]


@pytest.mark.parametrize("served", [True, False], ids=["from its file", "as an image"])
def test_builders_of_one_name_in_two_folders_make_two_images(
    served: bool, registry: SqliteRegistry, catalog: Catalog, checkpoint: Callable[..., Path], folder: Path
) -> None:
    checkpoint("m").chmod(0o644)
    resolver = Resolver(registry, catalog, InterpreterSelection(), folder / "artifacts", Limits(), in_place=True)
    for name in ("a", "b"):
        a_builder(folder / name, registry, "", name)
    found = [resolver.resolve(name, resolve.Reading(digest=not served)) for name in ("a", "b")]
    assert [each.hashed for each in found] == [not served] * 2
    assert found[0].key != found[1].key
    assert None not in (found[0].in_place, found[1].in_place)
    assert found[0].in_place != found[1].in_place


def test_an_edited_builder_makes_another_image_at_the_next_look(
    resolver: Resolver, registry: SqliteRegistry, checkpoint: Callable[..., Path], folder: Path
) -> None:
    checkpoint("m")
    file = a_builder(folder / "a", registry, "x = 1")
    before = resolver.resolve("m")
    assert resolver.resolve("m").key == before.key
    file.write_text("x = 2")
    assert resolver.resolve("m").key != before.key
    file.write_text("x = 1")
    assert resolver.resolve("m").key == before.key


def test_a_manifest_that_is_changed_behind_the_daemon_counts_at_the_next_look(
    catalog: Catalog, checkpoint: Callable[..., Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "_TRUST_S", 0.0)
    shared, other = (SqliteRegistry(folder / "shared.db", shared=True) for _ in range(2))
    with closing(shared), closing(other):
        resolver = Resolver(shared, catalog, InterpreterSelection(), folder / "artifacts", Limits())
        put(other, {"path": str(checkpoint("a"))})
        before = resolver.resolve("m")
        assert resolver.resolve("m").key == before.key
        put(other, {"path": str(checkpoint("b"))})
        assert resolver.resolve("m").key != before.key
        put(other, {"path": str(checkpoint("a"))}, description="the same file")
        after = resolver.resolve("m")
        assert (after.key, after.manifest.description) == (before.key, "the same file")
        other.remove("m")
        with pytest.raises(ModelNotFoundError):
            resolver.resolve("m")


def test_a_registry_that_only_the_daemon_changes_is_not_read_at_each_look(
    resolver: Resolver, registry: SqliteRegistry, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint("a")
    put(registry, {"path": str(path)})
    resolver.resolve("m")
    monkeypatch.setattr(registry, "get", None)
    assert resolver.resolve("m").artifact.files == (path,)
    assert resolver.resolve(f"file:{path}").artifact.files == (path,)


# -- paths ---------------------------------------------------------------------------------------------------------


def test_a_file_is_read_once_in_all_lives(
    resolver: Resolver, registry: SqliteRegistry, catalog: Catalog, checkpoint: Callable[..., Path], reads: list[str],
    folder: Path,
) -> None:  # fmt: skip
    path = checkpoint("a")
    first = resolver.resolve(f"file:{path}")
    assert resolver.resolve(f"file:{path}").key == first.key
    assert resolver.remembered(f"file:{path}").key == first.key  # type: ignore[union-attr]
    next_life = Resolver(registry, catalog, InterpreterSelection(), folder / "artifacts", Limits())
    assert next_life.resolve(f"file:{path}").key == first.key
    assert reads == ["a.safetensors"]


@pytest.mark.parametrize("how", ["rewritten", "touched", "replaced by a rename", "grown"])
def test_a_file_that_was_touched_is_read_again(
    how: str, resolver: Resolver, checkpoint: Callable[..., Path], reads: list[str]
) -> None:
    path = checkpoint("a")
    before = resolver.resolve(f"file:{path}")
    if how == "rewritten":
        path.write_bytes(checkpoint("b", {"weight": np.ones(3)}).read_bytes())
    elif how == "touched":
        os.utime(path, (1, 1))
    elif how == "replaced by a rename":
        os.replace(checkpoint("b", {"weight": np.ones(3)}), path)
    else:
        path.write_bytes(checkpoint("b", nbytes=8192).read_bytes())
    after = resolver.resolve(f"file:{path}")
    assert reads == ["a.safetensors", "a.safetensors"]
    assert (after.key == before.key) == (how == "touched"), "the key is the bytes'"


class Yielding:
    """The pace of a reading that no request waits for: here it gives way at once, and the reading is done as any."""

    def carry(self, *_: object) -> None:
        return None


BEHIND: Any = resolve.Reading(behind=Yielding())  # type: ignore[arg-type]


def test_a_file_that_was_read_in_writing_is_certain_once_it_was_read_at_rest(
    registry: SqliteRegistry, catalog: Catalog, checkpoint: Callable[..., Path], reads: list[str],
    folder: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(resolve, "_TRUST_S", 0.0)
    for module in (file_digests, hashing):
        monkeypatch.setattr(module, "identity_of", lambda _: "what a write in the same tick leaves")
    monkeypatch.setattr(artifacts, "identities_of", lambda files: tuple("the same" for _ in files))
    rest = [3.0]
    parts = (registry, catalog, InterpreterSelection(), folder / "artifacts", Limits())
    resolver = Resolver(*parts, clock=lambda: 100.0, rest_s=lambda _: rest[0])
    path = checkpoint("a")
    first = resolver.resolve(f"file:{path}")
    assert (first.certain, first.rests_at_s) == (False, 103.0)
    path.write_bytes(checkpoint("b", {"weight": np.ones(3)}).read_bytes())
    assert resolver.resolve(f"file:{path}", BEHIND).key == first.key, "it does not rest yet"
    rest[0] = -1.0
    assert resolver.resolve(f"file:{path}").key == first.key, "no request waits for a second reading"
    next_life = Resolver(*parts, rest_s=lambda _: rest[0])
    assert (next_life.resolve(f"file:{path}").key, next_life.resolve(f"file:{path}").certain) == (first.key, False)
    assert reads == ["a.safetensors"]
    second = resolver.resolve(f"file:{path}", BEHIND)
    assert second.certain
    assert second.key != first.key
    assert resolver.resolve(f"file:{path}", BEHIND).key == second.key
    assert reads == ["a.safetensors"] * 2


def test_the_same_bytes_under_any_name_are_one_image(
    resolver: Resolver, registry: SqliteRegistry, checkpoint: Callable[..., Path], folder: Path
) -> None:
    path = checkpoint("a")
    (folder / "copy.safetensors").write_bytes(path.read_bytes())
    (folder / "link.safetensors").symlink_to(path)
    put(registry, {"path": "copy.safetensors"}, str(folder), description="anything")
    names = [f"file:{path}", f"file:{folder}/copy.safetensors", f"file:{folder}/link.safetensors", "m"]
    assert len({resolver.resolve(name).key for name in names}) == 1


def test_a_link_that_points_elsewhere_now_is_noticed(
    resolver: Resolver, checkpoint: Callable[..., Path], folder: Path
) -> None:
    link = folder / "latest.safetensors"
    link.symlink_to(checkpoint("a"))
    before = resolver.resolve(f"file:{link}").key
    link.unlink()
    link.symlink_to(checkpoint("b"))
    assert resolver.resolve(f"file:{link}").key != before


def test_what_the_image_depends_on_changes_its_key(
    resolver: Resolver, registry: SqliteRegistry, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trims.formats.safetensors.converter import SafetensorsConverter

    path = checkpoint("a")
    put(registry, {"path": str(path)})
    keys = {resolver.resolve("m").key}
    monkeypatch.setattr(SafetensorsConverter, "version", 999)
    resolver.forget("m")
    keys.add(resolver.resolve("m").key)
    assert len(keys) == 2


def test_a_model_for_a_device_is_converted_for_one_unless_its_manifest_says_else(
    resolver: Resolver, registry: SqliteRegistry, checkpoint: Callable[..., Path], folder: Path
) -> None:
    pytest.importorskip("onnxruntime")
    helper = pytest.importorskip("onnx").helper
    graph = helper.make_graph([], "g", [], [])
    model = folder / "m.onnx"
    model.write_bytes(helper.make_model(graph).SerializeToString())
    on_device, keys = {"place": "gpu"}, []
    for residency, options in (({}, {}), (on_device, {}), (on_device, {"optimize": "none"})):
        put(registry, {"path": str(model), "options": options}, residency=residency)
        resolver.forget("m")
        keys.append(resolver.resolve("m").key)
        assert resolver.resolve("m").artifact.options == ({"optimize": "basic"} if residency else {}) | options
    assert len(set(keys)) == 3
    keys.clear()
    for residency in ({}, on_device):
        put(registry, {"path": str(checkpoint("a"))}, residency=residency)
        resolver.forget("m")
        keys.append(resolver.resolve("m").key)
    assert len(set(keys)) == 1, "its image knows no device"


@pytest.mark.parametrize("steps_back", [True, False])
def test_a_long_file_is_hashed_by_a_thread_that_lets_others_go_first(
    steps_back: bool, resolver: Resolver, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, readers = checkpoint("a"), hashing.read_digests, []
    monkeypatch.setattr(file_digests, "_HASH_HERE_BYTES", path.stat().st_size - steps_back)

    def read(file: Path, *how: Any) -> hashing.Digests:
        readers.append(threading.current_thread())
        return real(file, *how)

    monkeypatch.setattr(hashing, "read_digests", read)
    assert len(resolver.resolve(f"file:{path}").key) == 64
    assert (readers != [threading.current_thread()]) is steps_back


def test_a_file_that_changes_while_it_is_read_is_no_artifact(
    resolver: Resolver, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint("a")
    real = hashing.read_digests

    def touched_meanwhile(file: Path, *how: Any) -> hashing.Digests:
        digests = real(file, *how)
        os.utime(file, (1, 1))
        return digests

    monkeypatch.setattr(hashing, "read_digests", touched_meanwhile)
    with pytest.raises(ArtifactError, match=r"a\.safetensors changed while it was read"):
        resolver.resolve(f"file:{path}")


@pytest.mark.parametrize("times", [3, 100])
def test_a_file_that_is_replaced_while_it_is_read_is_begun_again_some_times(
    times: int, resolver: Resolver, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, left = checkpoint("a"), [times]
    real = hashing.read_digests

    def replaced_meanwhile(file: Path, *how: Any) -> hashing.Digests:
        digests = real(file, *how)
        if left[0]:
            left[0] -= 1
            checkpoint("b", {"weight": np.full(3, left[0])}).replace(path)
        return digests

    monkeypatch.setattr(hashing, "read_digests", replaced_meanwhile)
    if times == 3:
        assert resolver.resolve(f"file:{path}").key == resolver.resolve(f"file:{path}").key
    else:
        with pytest.raises(ArtifactChangedError, match=r"a\.safetensors was replaced 8 times while it was read"):
            resolver.resolve(f"file:{path}")


def test_files_that_are_none_are_named(resolver: Resolver, registry: SqliteRegistry, folder: Path) -> None:
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "folder.safetensors").mkdir()
    (folder / "dangling.safetensors").symlink_to(folder / "nowhere")
    for name in ("absent", "folder", "dangling", "empty"):
        with pytest.raises(ArtifactError, match=f"{name}.safetensors"):
            resolver.resolve(f"file:{folder}/{name}.safetensors")
    with pytest.raises(ArtifactError, match=rf"^{folder}/absent.npz is not a file; correct the path, or put it there"):
        resolver.resolve(f"file:{folder}/absent.npz")
    with pytest.raises(ModelNotFoundError):
        resolver.resolve("m")
    put(registry, {"path": "absent.npz"}, str(folder))
    with pytest.raises(ArtifactError, match=r"m: .*absent\.npz is not a file; correct the manifest"):
        resolver.resolve("m")


# -- what a manifest states ----------------------------------------------------------------------------------------


def test_a_stated_sha256_is_held_against_the_file_also_if_the_file_is_known(
    resolver: Resolver, registry: SqliteRegistry, checkpoint: Callable[..., Path], reads: list[str]
) -> None:
    path = checkpoint("a")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    plain = resolver.resolve(f"file:{path}").key
    put(registry, {"path": str(path), "sha256": {"a.safetensors": digest}})
    assert resolver.resolve("m").key == plain, "a digest that is right says nothing new"
    put(registry, {"path": str(path), "sha256": {"a.safetensors": "0" * 64}})
    resolver.forget("m")
    with pytest.raises(DigestMismatchError, match=rf"sha256 is {digest}, .* states 0{{64}}"):
        resolver.resolve("m")
    assert len(reads) == 2, "once without sha256, once with"
    put(registry, {"path": str(path), "sha256": {"b.safetensors": digest}})
    with pytest.raises(ManifestError, match=r"names 'b\.safetensors', which is not a file of it"):
        resolver.resolve("m")


def test_a_framework_that_does_not_fit_is_named_with_both_versions(
    resolver: Resolver, registry: SqliteRegistry, checkpoint: Callable[..., Path]
) -> None:
    path = str(checkpoint("a"))
    for version, fits in (("", True), (">=1.0", True), (f"=={np.__version__}", True), (">=99,<100", False)):
        put(registry, {"path": path}, framework={"name": "numpy", "version": version})
        resolver.forget("m")
        if fits:
            assert resolver.resolve("m").key
        else:
            with pytest.raises(NotSupportedError, match=rf"m needs numpy >=99,<100, and .* has {np.__version__}; make"):
                resolver.resolve("m")
    put(registry, {"path": path}, framework={"name": "numpy", "version": "newest"})
    with pytest.raises(ManifestError, match="'newest' is no version constraint"):
        resolver.resolve("m")


# -- packages and builders -----------------------------------------------------------------------------------------


def test_a_file_of_a_package_is_found_without_importing_it(
    resolver: Resolver, registry: SqliteRegistry, checkpoint: Callable[..., Path], folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    inside = folder / "site" / "weights_package" / "inner"
    inside.mkdir(parents=True)
    (inside.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    os.replace(checkpoint("a"), inside / "a.safetensors")
    monkeypatch.syspath_prepend(str(folder / "site"))
    importlib.invalidate_caches()
    for package, path in (("weights_package", "inner/a.safetensors"), ("weights_package.inner", "a.safetensors")):
        put(registry, {"package": {"name": package, "path": path}})
        resolver.forget("m")
        assert resolver.resolve("m").artifact.files == (inside / "a.safetensors",)
    put(registry, {"package": {"name": "no_such_package", "path": "a.npz"}})
    resolver.forget("m")
    with pytest.raises(ArtifactError, match="'no_such_package' is not installed"):
        resolver.resolve("m")
    put(registry, {"package": {"name": "weights_package", "path": "b.npz"}})
    with pytest.raises(ArtifactError, match=r"b\.npz is not a file"):
        resolver.resolve("m")


BUILDER = """
import pathlib
def make(out_dir, size):
    import numpy
    from safetensors.numpy import save_file
    save_file({"w": numpy.zeros(size)}, str(pathlib.Path(out_dir) / "made.safetensors"))
    pathlib.Path(__file__).with_name("calls").open("a").write("x")
"""


def test_a_builder_runs_once_for_what_it_is_asked(resolver: Resolver, registry: SqliteRegistry, folder: Path) -> None:
    (folder / "my_builder.py").write_text(BUILDER)

    def build(**more: Any) -> str:
        put(registry, {"builder": {"call": "my_builder:make", "args": {"size": 5}}}, str(folder), **more)
        resolver.forget("m")
        return resolver.resolve("m").key

    first = build()
    assert build(description="the same artifact") == first
    assert (folder / "calls").read_text() == "x"
    assert build(version="1.0.0") == first, "made again for another version, with the same bytes"
    assert (folder / "calls").read_text() == "xx"


def registered_onnx(registry: SqliteRegistry, folder: Path, version: str, name: str = "m") -> None:
    path = folder / "m.onnx"
    path.write_bytes(b"\x08\x08\x3a\x00")  # a model with a version and an empty graph
    framework = {"name": "onnxruntime", "version": version}
    registry.put({"name": name, "artifact": {"path": str(path)}, "framework": framework}, "", replace=True)


@pytest.fixture
def picky(folder: Path, registry: SqliteRegistry, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Resolver:
    """One that looks at files each time it is asked, and picks among made environments."""
    monkeypatch.setattr(resolve, "_TRUST_S", 0.0)
    picker = InterpreterSelection(env_store=EnvironmentStore(folder / "environments"))
    return Resolver(registry, catalog, picker, folder / "artifacts", Limits(time_s=60.0))


def test_one_artifact_in_two_versions_of_its_framework_is_two_images(
    picky: Resolver, registry: SqliteRegistry, folder: Path
) -> None:
    made = [make_environment(folder / "environments", n, onnxruntime=f"{n}.0", onnx="1.17.0") for n in (900, 901)]
    for version in (900, 901):
        registered_onnx(registry, folder, f"=={version}.*", f"m{version}")
    found = [picky.resolve(f"m{version}") for version in (900, 901)]
    assert [each.python for each in found] == [each.python for each in made]
    assert found[0].recipe["frameworks"] == {"onnxruntime": "900.0", "onnx": "1.17.0"}
    assert found[0].key != found[1].key


def test_an_environment_that_is_made_or_removed_is_seen_at_the_next_look(
    picky: Resolver, registry: SqliteRegistry, folder: Path, reads: list[str]
) -> None:
    registered_onnx(registry, folder, ">=900")
    with pytest.raises(NotSupportedError, match="trims env create 'onnxruntime>=900'"):
        picky.resolve("m")
    env_store = EnvironmentStore(folder / "environments")
    old = make_environment(env_store.folder, 1.0, onnxruntime="900.0")
    first = picky.resolve("m")
    new = make_environment(env_store.folder, 2.0, onnxruntime="901.0")
    second = picky.resolve("m")
    env_store.remove(new.name)
    third = picky.resolve("m")
    assert [each.python for each in (first, second, third)] == [old.python, new.python, old.python]
    assert (first.key == third.key, first.key == second.key) == (True, False)
    assert reads == ["m.onnx"]


def test_an_image_whose_artifact_is_gone_serves_though_no_environment_satisfies(
    picky: Resolver, registry: SqliteRegistry, catalog: Catalog, folder: Path
) -> None:
    made = make_environment(folder / "environments", onnxruntime="900.0")
    registered_onnx(registry, folder, ">=900")
    first = picky.resolve("m")
    catalog.remember_image(ImageRecord(first.key, "m", first.recipe, 1, 1.0))
    (folder / "m.onnx").unlink()
    EnvironmentStore(folder / "environments").remove(made.name)
    assert picky.resolve("m").key == first.key
    assert picky.resolve("m").python is None


# -- in turns ----------------------------------------------------------------------------------------------------------


def test_several_files_are_read_in_turns_to_their_ends_even_if_always_hashed(
    registry: SqliteRegistry, catalog: Catalog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = {f"w{number}": np.full(2000, number) for number in range(3)}
    for name, array in shards.items():
        save_file({name: array}, folder / f"{name}.safetensors")
    index = folder / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: f"{name}.safetensors" for name in shards}}))
    resolver = Resolver(registry, catalog, InterpreterSelection(), folder / "artifacts", Limits(), always_hash=True)
    known = resolver.resolve(f"file:{index}").key
    monkeypatch.setattr(hashing, "TURN_BYTES", 5000)
    monkeypatch.setattr(hashing, "_READ_BYTES", 5000)
    monkeypatch.setattr(resolve, "_TRUST_S", 0.0)
    progress, turns = hashing.Progress(), 1
    while True:
        try:
            found = resolver.resolve(f"file:{index}", hashing.Reading(progress=progress))
            break
        except hashing.TurnOverError:
            turns += 1
            assert turns < 100, "it comes to its end"
    assert found.key == known
    assert progress.read_bytes == sum(path.stat().st_size for path in folder.glob("*.safetensors*"))
    assert turns > 3 * 3


def test_requests_are_refused_by_size_before_a_long_file_is_read(
    resolver: Resolver, checkpoint: Callable[..., Path], reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = checkpoint("a", nbytes=9000), list[int]()

    class TooLarge:
        def may_refuse(self, nbytes: int, stated: object) -> bool:
            assert nbytes == path.stat().st_size
            return stated is None

        def refuse(self, nbytes: int, stated: object) -> None:
            said.append(nbytes)
            raise hashing.NotWantedError

    monkeypatch.setattr(file_digests, "_HASH_HERE_BYTES", 1000)
    for long in (True, False):
        with pytest.raises(hashing.NotWantedError):
            resolver.resolve(f"file:{path}", hashing.Reading(long=long, sizes=TooLarge()))
    assert said == [9001, 9001], "the length of the tensor"
    assert reads == []


def test_the_text_of_a_manifest_is_what_an_older_daemon_has_stored() -> None:
    stated = {"name": "m", "artifact": {"path": "m.npz"}, "residency": {"place": "gpu:1"}}
    more = {"inputs": [{"name": "x", "dtype": "FP32", "shape": [-1]}], "preprocess": [{"softmax": {"input": "x"}}]}
    assert json.loads(text_of(parse_manifest({**stated, **more}, "/o"))) == {
        "name": "m", "version": "0.0.0", "description": "", "license": "", "framework": None, "origin": "/o",
        "artifact": {
            "path": "m.npz", "package": None, "builder": None, "format": None, "sha256": {}, "allow_pickle": False,
            "trust": "identity", "options": {},
        },
        "residency": {
            "place": {"tier": "TierKind.GPU", "device": 1}, "pin": False, "keep_alive_s": None, "persist": "auto",
            "workspace_bytes": None,
        },
        "attributes": {},
        "predictor": {
            "call": "", "options": {}, "preload": [], "instances": 1, "threads": 0, "max_batch_size": 0,
            "batch_delay_s": 0.0, "keep_alive_s": None, "deadline_s": None, "name": "", "function": "", "hot": None,
            "priority_levels": 0, "default_priority_level": 0,
        },
        "inputs": [{"name": "x", "dtype": "FP32", "shape": [-1], "layout": "", "labels": ""}],
        "preprocess": [{"kind": "softmax", "fields": {"input": "x", "keep": False, "axis": -1, "outputs": ["x"]}}],
        "postprocess": [], "outputs": [],
    }  # fmt: skip


def versions(registry: SqliteRegistry, checkpoint: Callable[..., Path], *names: str) -> None:
    """Register these versions of the model `m`, each with a file of its own."""
    for name in names:
        raw = {"name": "m", "version": name, "artifact": {"path": str(checkpoint(f"v{name}"))}}
        registry.put(raw, "")


def test_a_name_stands_for_the_version_that_it_leads_to_once_it_is_forgotten(
    resolver: Resolver, registry: SqliteRegistry, catalog: Catalog, checkpoint: Callable[..., Path]
) -> None:
    versions(registry, checkpoint, "1", "2")
    first, second = resolver.resolve("m@1"), resolver.resolve("m@2")
    assert resolver.resolve("m").key == first.key
    assert (first.name, second.name, resolver.row_of("m")) == ("m@1", "m@2", "m@1")
    registry.switch("m", "", "2")
    before = resolver.epoch("m@1")
    resolver.forget("m")
    assert resolver.epoch("m@1") == resolver.epoch("m@2") == resolver.epoch("m") == before + 1
    assert resolver.known("m") is resolver.remembered("m") is None
    assert resolver.resolve("m").key == second.key
    assert resolver.resolve("m@1").key == first.key
    assert catalog.names_of(first.key) == ["m@1"], "what no name leads to any more is still registered"


def test_names_that_lead_to_one_version_share_what_is_known_of_it(
    resolver: Resolver, registry: SqliteRegistry, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "_TRUST_S", 1000.0)
    versions(registry, checkpoint, "1", "2")
    registry.switch("m", "stable", "2")
    resolver.resolve("m@2")
    assert resolver.known("m@stable") is None, "it was not looked up yet"
    found = resolver.resolve("m@stable")
    assert resolver.known("m@stable") is resolver.known("m@2") is found


def test_a_switch_during_a_look_is_not_lost(
    resolver: Resolver, registry: SqliteRegistry, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions(registry, checkpoint, "1", "2")
    real, looks = resolver._resolve, []

    def during(entry: Entry, reading: Reading) -> Resolved:
        found = real(entry, reading)
        if not looks:
            registry.switch("m", "", "2")
            resolver.forget("m")
        looks.append(entry.row)
        return found

    monkeypatch.setattr(resolver, "_resolve", during)
    assert resolver.resolve("m").name == "m@2"
    assert looks == ["m@1", "m@2"]


def test_a_switch_by_another_program_counts_at_the_next_look_at_the_name(
    catalog: Catalog, checkpoint: Callable[..., Path], folder: Path
) -> None:
    clock = [0.0]
    shared, other = (SqliteRegistry(folder / "shared.db", shared=True) for _ in range(2))
    with closing(shared), closing(other):
        resolver = Resolver(
            shared, catalog, InterpreterSelection(), folder / "artifacts", Limits(), clock=lambda: clock[0]
        )
        versions(other, checkpoint, "1", "2")
        first = resolver.resolve("m")
        other.switch("m", "", "2")
        clock[0] = 0.4
        assert resolver.resolve("m@1").key == first.key
        assert resolver.known("m") is not None
        clock[0] = 0.6
        assert resolver.known("m@1") is not None
        assert resolver.known("m") is None
        assert resolver.resolve("m").name == "m@2"
