"""Programs in images that others made: not run unless the user's own manifest says so."""

# fault (sources): others' image that runs code -> `permission_denied` with the consent it takes; its tensors are read

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from file_server import FileServer, file_server  # noqa: E402
from pushed_images import image_bytes, put  # noqa: E402
from torch_images import IMAGES, with_skeleton  # noqa: E402

import trims  # noqa: E402
from trims.control import admin  # noqa: E402
from trims.core.errors import AddressRefusedError, PermissionDeniedError  # noqa: E402
from trims.image.program import TORCH_BUILDER, TORCH_SKELETON, Program  # noqa: E402
from trims.sources.descriptor import ImageDescription  # noqa: E402
from trims.testing import torch_modules  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon


class Touch:
    """A pickle that makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._path), "w")


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as made:
        yield made


@pytest.fixture
def start(serve: Callable[..., Daemon]) -> Callable[[], Daemon]:
    return lambda: serve(allow_hosts="127.0.0.1")


def refusal(daemon: Daemon) -> str:
    """Return why the program of `m` is not run; its tensors are read."""
    with trims.connect(daemon.config.runtime_dir) as session, session.open("m") as weights:
        assert not weights.trusted
        for name in weights:
            assert np.asarray(weights[name]).size
        trims.torch.state_dict(weights)
        with pytest.raises(PermissionDeniedError) as raised:
            trims.torch.module(weights)
        return str(raised.value)


def add(daemon: Daemon, uri: str, **artifact: Any) -> None:
    with admin(daemon.config.runtime_dir) as orders:
        orders.add({"name": "m", "artifact": {"uri": uri, **artifact}}, lazy=True, replace=True)


def test_a_hostile_program_of_a_pulled_image_never_runs(
    folder: Path, server: FileServer, start: Callable[[], Daemon]
) -> None:
    evil = folder / "evil"
    program = Program(TORCH_SKELETON, {"versions": {"torch": torch.__version__}}, pickle.dumps(Touch(evil)))
    data, weight = image_bytes(program=program)
    # What the publisher says of consent counts for nothing.
    publishers = {"artifact": {"path": "x", "allow_pickle": True}, "framework": {"name": "torch"}}
    address = put(server, data, manifest=publishers, format="torch", recipe={"allow_pickle": True})
    daemon = start()
    with admin(daemon.config.runtime_dir) as orders:
        orders.add(address, name="m")
    why = refusal(daemon)
    assert all(part in why for part in ("'m'", address, "a pickle, which can run anything", "allow_pickle: true"))
    daemon.ask_to_end(purge=False)
    daemon.stop()
    daemon = start()
    assert refusal(daemon) == why
    with trims.connect(daemon.config.runtime_dir) as session, session.open("m", place="cpu") as weights:
        np.testing.assert_array_equal(weights["weight"], weight)
    assert not evil.exists()


def test_a_call_that_a_pulled_image_names_is_not_made(server: FileServer, start: Callable[[], Daemon]) -> None:
    program = Program(TORCH_BUILDER, {"module": "os:system", "module_args": {"command": "true"}})
    daemon = start()
    add(daemon, put(server, image_bytes(program=program)[0]))
    assert "a call of any function" in refusal(daemon)


def test_an_own_manifest_consents_to_the_program(folder: Path, server: FileServer, start: Callable[[], Daemon]) -> None:
    own, image = with_skeleton(folder, torch_modules.conv_net)
    address = put(server, image.read_bytes(), format="torch")
    daemon = start()
    add(daemon, address)
    refusal(daemon)
    add(daemon, address, allow_pickle=True)
    with trims.connect(daemon.config.runtime_dir) as session, session.open("m") as weights:
        assert weights.trusted
        with torch.no_grad():
            assert torch.equal(trims.torch.module(weights)(IMAGES), own(IMAGES))


def test_a_program_that_was_pushed_from_here_runs_and_one_passed_on_does_not(
    server: FileServer, folder: Path, start: Callable[[], Daemon]
) -> None:
    _, image = with_skeleton(folder, torch_modules.conv_net)
    address = put(server, image.read_bytes(), format="torch")
    own = put(server, image.read_bytes(), path="/own", format="torch")
    description = ImageDescription(**{
        name: value for name, value in json.loads(server.files["/own/trims.json"].data).items()
        if name not in ("kind", "format_version")
    })  # fmt: skip
    daemon = start()
    remote = daemon.store.resolver.remote
    assert remote is not None
    remote.remember_image(own, description)
    add(daemon, own)
    with trims.connect(daemon.config.runtime_dir) as session, session.open("m") as weights:
        assert weights.trusted
        trims.torch.module(weights)
    passed_on = remote.fetch(address)
    remote.remember_image(own, ImageDescription(**{**vars(description), "key": passed_on.image_key}))
    add(daemon, own, trust="verified")
    assert own in refusal(daemon)


def test_a_manifest_from_elsewhere_cannot_consent(server: FileServer, start: Callable[[], Daemon]) -> None:
    server.serve("/m.yaml", b"name: m\nartifact: {path: m.pt, options: {allow_pickle: true}}\n")
    daemon = start()
    with admin(daemon.config.runtime_dir) as orders, pytest.raises(AddressRefusedError, match="allow_pickle"):
        orders.add(f"{server.url}/m.yaml")
