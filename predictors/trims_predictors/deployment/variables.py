"""Environment variables that a manifest names for its predictors: of those, and only those, that the operator lists.

A manifest may be a tenant's. If it could name any variable, it would read the operator's keys; so a name that is not
listed is refused. The manifest has names only: the values come from the environment of what starts the predictors.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError, NotSupportedError
from trims.process.child_environment import parse_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Variable of the environment with the names that are listed where `--model-variables` is not given.
LISTED = "TRIMS_MODEL_VARIABLES"


def listed_variables(names: str | None = None, given: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Return the variables that manifests may name, with their values; None for one that is not set.

    Args:
        names: Names with commas between; None for those of the variable `TRIMS_MODEL_VARIABLES`.
        given: The environment; None for this process's.

    Raises ConfigError for what is no name of a variable.
    """
    found = os.environ if given is None else given
    try:
        return {name: found.get(name) for name in parse_names(found.get(LISTED, "") if names is None else names)}
    except ValueError as error:
        raise ConfigError(f"--model-variables: {error}") from error


def variables_of(model: str, names: Sequence[str], listed: Mapping[str, str | None]) -> dict[str, str]:
    """Return the variables that a model's manifest names, without those that are not set.

    Raises NotSupportedError for a name that is not listed.
    """
    if refused := [name for name in names if name not in listed]:
        raise NotSupportedError(
            f"the manifest of {model!r} names the variables {', '.join(refused)}, which the operator has not listed: "
            f"start the endpoint with --model-variables {','.join([*listed, *refused])}, or take them out of "
            "`predictor: variables`"
        )
    return {name: value for name in names if (value := listed[name]) is not None}
