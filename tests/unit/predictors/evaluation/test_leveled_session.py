"""Orders of leveled evaluations that cannot be carried out; whole ones are in tests/e2e/test_levels.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from fleets import register
from trims_predictors.deployment.deployments import Deployments
from trims_predictors.evaluation.leveled_session import evaluating_levels

from trims.control import aadmin
from trims.core.errors import CallerError
from trims.formats.conversion.interpreter_selection import InterpreterSelection
from trims.trace.levels import Level

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon


def test_a_model_whose_inputs_are_not_known_needs_some(
    daemon: Daemon, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    register(daemon, checkpoint, predictor={"function": "own_functions:scale"})

    async def work() -> None:
        async with aadmin(daemon.config.runtime_dir) as control:
            deployments = Deployments(control, InterpreterSelection({}), lambda _key: None)
            runtime_dir = str(daemon.config.runtime_dir)
            await evaluating_levels(
                deployments, runtime_dir, tmp_path, model="m", level=Level.FRAMEWORK, repeats=1, make=None
            )

    with pytest.raises(CallerError, match="inputs of m are not known"):
        asyncio.run(work())
