"""Failures as messages: of bounded length, whole text, with the remedy."""

from __future__ import annotations

import errno

import pytest
from trims_predictors.worker.failures import blamed, confinement, failed, lacks_device_memory, no_device_memory

from trims.core.errors import CallerError, NoSpaceError, PredictorError


def test_a_failure_has_code_and_words_and_never_loses_its_remedy() -> None:
    assert failed(CallerError("no")) == {"op": "failed", "code": CallerError.code, "message": "no"}
    long = failed(CallerError("x" * 10_000), "do that")["message"]
    assert (len(long), long[-9:]) == (4000, "; do that")
    assert failed(CallerError("half \ud800"))["message"] == "half ?", "half of a surrogate pair is no text"


def test_the_models_code_is_blamed_for_what_it_failed_in() -> None:
    for message, words in (({"op": "load"}, "could not load the model"), ({"op": "predict"}, "failed in predict")):
        error = blamed(message, ZeroDivisionError("it"))
        assert isinstance(error, PredictorError)
        assert f"the predictor {words}: " in str(error)


def test_what_the_code_raised_is_beside_the_message_as_text() -> None:
    message = failed(PredictorError("words"), cause=ValueError("half \ud800"))
    assert message["raised"] == ["ValueError", "half ?", "", 0, ""]


def test_the_place_is_in_the_words_also_of_a_long_message() -> None:
    try:
        raise ValueError("x" * 10_000)
    except ValueError as error:
        words = failed(blamed({"op": "predict"}, error))["message"]
    assert "(test_failures.py:" in words


def test_only_errors_that_a_namespace_causes_are_explained_by_it() -> None:
    assert "--isolation process" in confinement(OSError(errno.EROFS, "read-only"))
    assert confinement(OSError(errno.ENOENT, "missing")) == confinement(ValueError()) == ""


class OutOfMemoryError(RuntimeError):
    """As torch and cupy call theirs."""


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA failure 2: out of memory ; GPU=0"), True),
        (RuntimeError("bfc_arena: Failed to allocate memory for requested buffer of size 1024"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("CUDA failure 700: an illegal memory access was encountered"), False),
        (MemoryError("Unable to allocate 2.00 GiB"), False),
    ],
)
def test_a_lack_of_device_memory_is_told_from_other_errors(error: Exception, found: bool) -> None:
    assert lacks_device_memory(error) == found


def test_a_lack_of_device_memory_is_an_error_of_room_with_the_frameworks_figures() -> None:
    error = no_device_memory("gpu:1", OutOfMemoryError("Tried to allocate 2.00 GiB"))
    assert isinstance(error, NoSpaceError)
    assert str(error).startswith("gpu:1 has no memory left")
    assert "2.00 GiB" in str(error)
