"""Manifests name environment variables for their predictors: of those, and only those, that the operator lists."""

from __future__ import annotations

import pytest
from trims_predictors.deployment.variables import listed_variables, variables_of

from trims.core.errors import ConfigError, NotSupportedError


def test_listed_variables_have_the_values_of_the_environment() -> None:
    given = {"TRIMS_MODEL_VARIABLES": "ONE, NONE", "ONE": "1", "KEY": "secret"}
    assert listed_variables(None, given) == {"ONE": "1", "NONE": None}
    assert listed_variables("KEY", given) == {"KEY": "secret"}
    assert listed_variables(None, {"KEY": "secret"}) == {}


def test_a_list_with_a_value_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="--model-variables: 'KEY=x' is no name of an environment variable"):
        listed_variables("KEY=x", {})


def test_a_manifest_that_names_an_unlisted_variable_is_refused_with_the_remedy() -> None:
    listed = {"ONE": "1", "NONE": None}
    assert variables_of("m", ["ONE", "NONE"], listed) == {"ONE": "1"}
    with pytest.raises(
        NotSupportedError, match=r"KEY, which the operator has not listed.*--model-variables ONE,NONE,KEY"
    ):
        variables_of("m", ["ONE", "KEY"], listed)
