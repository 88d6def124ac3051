"""The most of each thing in a request; where they hold is in the tests of requests."""

from __future__ import annotations

import pytest
from trims_predictors.endpoint.requests.request_limits import MOST_NAME_LETTERS, check_count, check_name_length

from trims.core.errors import CallerError


def test_as_many_as_may_be_are_taken_and_one_more_is_refused_with_its_number() -> None:
    check_count("inputs of the request", 3, 3)
    with pytest.raises(CallerError, match="4 inputs of the request; 3 are the most"):
        check_count("inputs of the request", 4, 3)


def test_a_long_name_is_refused_without_being_told_in_full() -> None:
    check_name_length("x" * MOST_NAME_LETTERS, "an input")
    with pytest.raises(CallerError) as caught:
        check_name_length("x" * 100_000, "an input")
    assert len(str(caught.value)) < 200
