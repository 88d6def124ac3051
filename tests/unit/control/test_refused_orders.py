"""Refusals of an operator's client itself, and the state that a model which cannot be added leaves as it was."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import trims
from trims.core.errors import ArtifactError, CallerError, ManifestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.control import Admin
    from trims.daemon.main import Daemon


@pytest.fixture
def admin(daemon: Daemon) -> Iterator[Admin]:
    with trims.admin(daemon.config.runtime_dir) as made:
        yield made


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (lambda admin: admin.show(7), r"name is 7; it must be of type str"),
        (lambda admin: admin.pin("m", None), r"place is None; it must be of type str"),
        (lambda admin: admin.load("m", deadline_s="soon"), r"deadline_s is 'soon'; it must be of type float"),
        (lambda admin: admin.evict("m", drain="yes"), r"drain is 'yes'; it must be of type bool"),
        (lambda admin: admin.add(7), r"7 is no model; give a path, or a manifest as a mapping"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_with_its_name(
    admin: Admin, order: Callable[[Admin], Any], said: str
) -> None:
    with pytest.raises(CallerError, match=said):
        order(admin)


def test_a_manifest_that_is_no_yaml_is_refused(admin: Admin) -> None:
    with pytest.raises(ManifestError, match="cannot be written as YAML"):
        admin.add({"name": "m", "artifact": {"path": object()}})


def test_a_replacement_that_cannot_be_converted_leaves_the_manifest_before_it(
    admin: Admin, checkpoint: Callable[..., Path], folder: Path
) -> None:
    (folder / "here").mkdir()
    checkpoint("m").rename(folder / "here" / "m.safetensors")
    manifest = folder / "here" / "m.yaml"
    manifest.write_text("name: m\nartifact: {path: m.safetensors}\nlicense: MIT\n")
    before = admin.add(manifest)
    assert before.origin == str(folder / "here")
    broken = folder / "m.safetensors"
    broken.write_bytes(b"no weights")
    with pytest.raises(ArtifactError):
        admin.add(broken, name="m", replace=True)

    async def again() -> None:
        async with trims.aadmin(folder / "run") as operator:
            with pytest.raises(ArtifactError):
                await operator.add(broken, name="m", replace=True)
            assert (await operator.load("m", "cpu")).nbytes > 0

    asyncio.run(again())
    after = admin.show("m")
    assert (after.license, after.origin, after.key) == ("MIT", before.origin, before.key)
