"""Architectures of torchvision and timm are the same from their own files, from disk and from memory as alone."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
if not all(importlib.util.find_spec(name) for name in ("torchvision", "timm")):
    pytest.skip("torchvision and timm are not here (make torch-architectures)", allow_module_level=True)

from architectures import TIMM, TORCHVISION, build  # noqa: E402

import trims  # noqa: E402
from trims.formats.torch.proof import why_other  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_client import Session

    from trims.daemon.main import Daemon

pytestmark = [pytest.mark.usefixtures("own_files"), pytest.mark.soak, pytest.mark.timeout(300)]


@pytest.fixture
def daemon(serve: Callable[..., Daemon]) -> Daemon:
    return serve(trust="identity", cpu_capacity_bytes=2 << 30)


def saved(name: str, path: Path) -> Any:
    """Save an architecture with values that no builder starts with, and return it as torch alone loads it."""
    module, random = build(name), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for each in (*module.parameters(), *(each for each in module.buffers() if each.is_floating_point())):
            each.copy_(torch.rand(each.shape, generator=random))
    torch.save(module.state_dict(), path)
    path.chmod(0o644)
    alone = build(name)
    alone.load_state_dict(torch.load(path))
    return alone.eval()


@pytest.mark.parametrize("name", [*TORCHVISION, *TIMM])
@pytest.mark.filterwarnings("ignore")
def test_an_architecture_is_the_same_at_each_place(name: str, daemon: Daemon, session: Session, folder: Path) -> None:
    alone = saved(name, folder / "m.pt")
    options = {"module": "architectures:build", "module_args": {"name": name}}
    daemon.registry.put({"name": "m", "artifact": {"path": "m.pt", "options": options}}, str(folder))
    for place, kind in (("file", "torch-builder"), ("disk", "torch-skeleton"), ("cpu", "torch-skeleton")):
        with session.open("m", place=place) as weights:
            program = weights.program()
            assert program is not None
            assert (weights.place, program.kind) == (place, kind), program.attributes.get("why")
            assert why_other(trims.torch.module(weights), alone) is None
