"""Routes and methods of extensions that are not offered are refused by the extension's name."""

from __future__ import annotations

import pytest
from trims_predictors.endpoint.extensions import extension_of_path, why_no_method


@pytest.mark.parametrize(
    ("path", "extension"),
    [
        ("/v2/cudasharedmemory/status", "cuda_shared_memory"),
        ("/v2/cudasharedmemory/region/r/register", "cuda_shared_memory"),
        ("/v2/trace/setting", "trace"),
        ("/v2/models/m/trace/setting", "trace"),
        ("/v2/logging", "logging"),
        ("/v2/models/m/generate", None),
        ("/v2/models/m/infer", None),
        ("/v2/models/trace/ready", None),
        ("/v2/nothing", None),
        ("/nothing/v2/logging", None),
    ],
)
def test_a_path_belongs_to_an_extension_or_to_none(path: str, extension: str | None) -> None:
    assert extension_of_path(path) == extension


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("TraceSetting", "the extension trace is not offered"),
        ("LogSettings", "the extension logging is not offered"),
        ("CudaSharedMemoryRegister", "the extension cuda_shared_memory is not offered"),
        ("Nonsense", "there is no method '/inference.GRPCInferenceService/Nonsense'"),
    ],
)
def test_a_method_that_is_not_there_says_why(method: str, why: str) -> None:
    assert why_no_method(f"/inference.GRPCInferenceService/{method}").startswith(why)
