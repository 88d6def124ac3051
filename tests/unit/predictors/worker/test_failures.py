"""Failures as messages: of bounded length, whole text, with the remedy."""

from __future__ import annotations

import errno

from trims_predictors.worker.failures import blamed, confinement, failed

from trims.core.errors import CallerError, PredictorError


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
