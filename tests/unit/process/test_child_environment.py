"""Children get the environment variables that a list names for their kind, and no secret of the parent's."""

from __future__ import annotations

import pytest

from trims.process.child_environment import FETCHING, FRAMEWORKS, child_environment, parse_names

NEEDED = {
    "PATH": "/bin", "HOME": "/root", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "LD_LIBRARY_PATH": "/opt/lib",
    "PYTHONPATH": "/opt", "TRIMS_LOG_LEVEL": "info",
}  # fmt: skip
OF_FRAMEWORKS = {
    "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0", "MKL_NUM_THREADS": "2", "HF_HOME": "/hub",
    "TOKENIZERS_PARALLELISM": "false", "MXNET_ENGINE_TYPE": "NaiveEngine", "TORCH_HOME": "/torch",
}  # fmt: skip
OF_FETCHERS = {
    "AWS_SECRET_ACCESS_KEY": "s", "AZURE_STORAGE_KEY": "s", "HF_TOKEN": "s", "https_proxy": "http://u:s@proxy",
    "GOOGLE_APPLICATION_CREDENTIALS": "/key", "NETRC": "/netrc",
}  # fmt: skip
OTHERS = {"DATABASE_URL": "s", "MY_PASSWORD": "s", "TRIMS_EVALUATIONS": "s", "NVIDIA_API_KEY": "s", "TORCH_TOKEN": "s"}
ALL = {**NEEDED, **OF_FRAMEWORKS, **OF_FETCHERS, **OTHERS}


def test_a_child_without_a_list_gets_what_every_program_needs() -> None:
    assert child_environment(given=ALL) == NEEDED


def test_a_child_that_runs_frameworks_gets_their_variables_and_no_secret() -> None:
    assert child_environment(FRAMEWORKS, given=ALL) == {**NEEDED, **OF_FRAMEWORKS}


def test_a_child_that_fetches_gets_credentials_and_proxies_and_no_other_secret() -> None:
    found = child_environment(FETCHING, given=ALL, secrets=True)
    assert found == {**NEEDED, **OF_FETCHERS, "HF_HOME": "/hub"}


def test_a_child_of_another_interpreter_gets_none_of_this_ones_paths() -> None:
    found = child_environment(given=ALL, python="/other/bin/python", more={"PATH": "/other/bin"})
    assert "PYTHONPATH" not in found
    assert found["PATH"] == "/other/bin"


def test_a_list_of_names_with_a_value_is_refused() -> None:
    assert parse_names("ONE, TWO") == ("ONE", "TWO")
    with pytest.raises(ValueError, match="'ONE=1' is no name of an environment variable"):
        parse_names("ONE=1")
