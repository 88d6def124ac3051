"""Modules that load state dicts in ways of their own have the same values at every place as with torch alone."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import torch_ways  # noqa: E402

import trims  # noqa: E402
from trims.control.client import Admin  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims_client import Session

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("own_files")
PLACES = ("file", "disk", "cpu")
TAKEN = [
    ["Scaled", "Versioned"], ["Written", "Followed"], ["Widened", "Extra"], ["Turned", "Halved"],
    ["Renamed", "LastFirst"], ["Versioned", "Counting"], ["Plain", "Seeded"],
]  # fmt: skip


@pytest.fixture
def daemon(serve: Callable[..., Daemon]) -> Daemon:
    return serve(trust="identity")


@pytest.fixture
def ways(folder: Path) -> Iterator[Any]:
    """The module of builders that lies beside the manifests, imported under a name that no other test has."""
    name = f"ways_{folder.name.replace('-', '_')}"
    shutil.copy(str(torch_ways.__file__), folder / f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


def register(daemon: Daemon, ways: Any, state: Any, folder: Path, **args: Any) -> None:
    torch.save(state, folder / "m.pt")
    (folder / "m.pt").chmod(0o644)
    options = {"module": f"{ways.__name__}:build", "module_args": args}
    daemon.registry.put({"name": "m", "artifact": {"path": "m.pt", "options": options}}, str(folder))


@pytest.mark.parametrize("kinds", TAKEN, ids="-".join)
def test_each_place_gives_what_load_state_dict_gives(
    kinds: list[str], daemon: Daemon, session: Session, folder: Path, ways: Any
) -> None:
    state = ways.trained(kinds).state_dict()
    for name, tensor in state.items():
        state[name] = tensor.contiguous()  # others are converted before they are served
    register(daemon, ways, state, folder, kinds=kinds)
    wanted = ways.loaded(torch.load(folder / "m.pt"), kinds)
    for place in PLACES:
        with session.open("m", place=place) as weights:
            assert weights.place == place
            ways.assert_alike(trims.torch.module(weights), wanted)
            assert dict(trims.torch.state_dict(weights)._metadata) == dict(state._metadata)
            assert trims.torch.state_dict(weights).keys() == state.keys()
            ways.assert_alike(trims.torch.load_into(ways.build(kinds), weights).eval(), wanted)


def test_a_whole_with_a_way_of_its_own_is_built_at_each_place_and_shown(
    daemon: Daemon, session: Session, folder: Path, ways: Any
) -> None:
    state = ways.trained(["Plain", "Plain"]).state_dict()
    register(daemon, ways, state, folder, kinds=["Plain", "Plain"], whole=True)
    for place in PLACES:
        with session.open("m", place=place) as weights:
            ways.assert_alike(trims.torch.module(weights), ways.loaded(state, ["Plain", "Plain"], whole=True))
    with Admin(daemon.config.runtime_dir) as admin:
        shown = {each.place: each.story for each in admin.show("m").replicas}
    begin = f"each session builds it by {ways.__name__}:build and loads its weights: of the module Whole, 0.weight has "
    assert all(story[-1].startswith(begin) for place, story in shown.items() if place != "file")
    assert not any("each session" in line for line in shown["file"])


def test_versions_of_modules_come_from_all_shards(daemon: Daemon, session: Session, folder: Path, ways: Any) -> None:
    import json

    kinds = ["Versioned", "Versioned"]
    state, shards = ways.trained(kinds).state_dict(), {}
    for number in (0, 1):
        names = [name for name in state if name.startswith(f"{number}.")]
        part = type(state)((name, state[name]) for name in names)
        part._metadata = {name: each for name, each in state._metadata.items() if name == str(number)}
        torch.save(part, folder / f"part{number}.bin")
        shards.update(dict.fromkeys(names, f"part{number}.bin"))
    main = folder / "pytorch_model.bin.index.json"
    main.write_text(json.dumps({"weight_map": shards}))
    for path in folder.glob("p*.*"):
        path.chmod(0o644)
    options = {"module": f"{ways.__name__}:build", "module_args": {"kinds": kinds}}
    daemon.registry.put({"name": "m", "artifact": {"path": main.name, "options": options}}, str(folder))
    for place in PLACES:
        with session.open("m", place=place) as weights:
            ways.assert_alike(trims.torch.module(weights), ways.loaded(state, kinds))
