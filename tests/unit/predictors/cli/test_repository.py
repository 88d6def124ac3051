"""`trims reload` and `trims unload` without an endpoint to ask; with one they are in tests/e2e/test_edited_code.py."""

from __future__ import annotations

import pytest

from trims.cli.main import main


@pytest.mark.parametrize("verb", ["reload", "unload"])
@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "nan"])
def test_seconds_that_are_no_wait_are_refused(verb: str, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "m", "--deadline-s", seconds]) == 1
    assert "--deadline-s" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["reload", "unload"])
def test_an_endpoint_that_is_named_and_does_not_answer_is_an_error(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "m", "--endpoint", "http://127.0.0.1:9"]) == 1
    assert "http://127.0.0.1:9" in capsys.readouterr().err
