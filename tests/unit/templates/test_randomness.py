"""Forks of one template draw different random numbers, as fresh processes do."""

# fault (code): a plug-in of random numbers fails in a fork -> `predictor` with the reason, or `spawned`

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fleets import Driver, drive, register, text
from trims_predictors.children.template_process import Template
from trims_predictors.deployment.deployment import load_message
from trims_predictors.tensors import from_array, to_array

from trims.core.errors import PredictorError
from trims.templates import randomness

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

#: Expressions whose values differ between two fresh processes that have imported the modules.
DRAWS = {
    "numpy": "__import__('numpy').random.rand()",
    "torch": "__import__('torch').rand(1).item()",
    "torch initial seed": "__import__('torch').initial_seed()",
    "random": "__import__('random').random()",
    "secrets": "__import__('secrets').token_hex(8)",
    "uuid4": "str(__import__('uuid').uuid4())",
    "temporary names": "next(__import__('tempfile')._get_candidate_names())",
    "authkey": "bytes(__import__('multiprocessing').current_process().authkey)",
    "plug-in": "__import__('seeded_at_import').VALUE",
}
PACKAGE = """
import os
VALUE = os.urandom(8)
def reseed():
    global VALUE
    VALUE = os.urandom(8)
def fail():
    raise OSError("no entropy")
"""


def write_plugin(site: Path, value: str) -> None:
    """A package that is seeded at its import, and the metadata of its entry point."""
    site.mkdir()
    (site / "seeded_at_import.py").write_text(PACKAGE)
    info = site / "seeded_at_import-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: seeded-at-import\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{randomness.GROUP}]\nseeded_at_import = {value}\n")


MODULES = ["numpy.random", "torch", "multiprocessing", "random", "uuid", "tempfile", "seeded_at_import"]


@pytest.fixture
def forks(
    daemon: Daemon, checkpoint: Callable[..., Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str, int], list[Any]]:
    """Value of an expression in each of several forks of one template, where this plug-in is installed."""

    def run(code: str, plugin: str, count: int) -> list[Any]:
        write_plugin(folder / "site", plugin)
        monkeypatch.setenv("PYTHONPATH", str(folder / "site"))
        register(daemon, checkpoint, predictor={"call": "own_predictors:Prober"})

        async def work(driver: Driver) -> list[Any]:
            deployment, launcher = await driver.deployment(), driver.pool._launcher
            template = Template(launcher, deployment.environment, [*deployment.environment.modules(), *MODULES])
            found = []
            try:
                for _ in range(count):
                    process = await template.fork()
                    await process.ask(load_message(deployment, None), deadline_s=60)
                    tensors = [from_array("code", text(f"value = {code}"))]
                    answer = await process.ask({"op": "predict", "threads": 1}, deadline_s=60, tensors=tensors)
                    found.append(to_array(answer["outputs"][0])[0].decode())
                    await process.end()
            finally:
                template.end_all()
                await template.gone
            return found

        return list(drive(daemon, work))

    return run


def test_forks_of_one_template_draw_different_numbers(forks: Callable[..., list[Any]]) -> None:
    names = list(DRAWS)
    found = forks(f"[{', '.join(DRAWS.values())}]", "seeded_at_import:reseed", 3)
    drawn = [eval(each) for each in found]
    for index, name in enumerate(names):
        assert len({each[index] for each in drawn}) == 3, name


def test_a_template_is_not_forked_if_a_plugin_that_seeds_cannot_be_loaded(forks: Callable[..., list[Any]]) -> None:
    with pytest.raises(
        PredictorError, match=r"cannot be forked: the trims\.reseed plugin 'seeded_at_import'"
    ) as caught:
        forks("1", "seeded_at_import:absent", 1)
    assert "AttributeError" in str(caught.value)


def test_a_fork_whose_plugin_fails_to_seed_ends(forks: Callable[..., list[Any]]) -> None:
    with pytest.raises(PredictorError, match="exited with status 70"):
        forks("1", "seeded_at_import:fail", 1)
