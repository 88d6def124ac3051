"""Log lines: time, level, logger, and what they are about, as text and as JSON."""

from __future__ import annotations

import json
import logging
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from trims import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOGGER = "trims.of_test"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers = handlers


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    return lambda: capsys.readouterr().err


def test_a_line_of_text_has_time_level_and_logger(said: Callable[[], str]) -> None:
    logs.configure("info", "text")
    logging.getLogger(LOGGER).warning("no %s", "room")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING trims\.of_test: no room\n", said())


def test_a_line_names_the_model_and_the_request_that_it_is_about(said: Callable[[], str]) -> None:
    logs.configure("info", "text")
    with logs.about(model="bert", request="a b"), logs.about(request="c\nd"):
        logging.getLogger(LOGGER).info("it runs")
    logging.getLogger(LOGGER).info("over")
    first, second = said().splitlines()
    assert first.endswith('it runs [model=bert request="c\\nd"]')
    assert second.endswith("over")


def test_a_line_of_json_is_one_object_with_all_that_is_known(said: Callable[[], str]) -> None:
    logs.configure("info", "json")
    with logs.about(model="bert"):
        try:
            raise ValueError("a\nb")
        except ValueError:
            logging.getLogger(LOGGER).exception("it\nfails", extra={"facts": {"status": 500, "message": "not this"}})
    (line,) = said().splitlines()
    found: dict[str, Any] = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("error", LOGGER, "it\nfails")
    assert (found["model"], found["status"]) == ("bert", 500)
    assert "ValueError: a\nb" in found["traceback"]


@pytest.mark.parametrize(("level", "lines"), [("debug", 3), ("info", 2), ("error", 1)])
def test_a_level_leaves_out_what_is_below_it(said: Callable[[], str], level: str, lines: int) -> None:
    logs.configure(level, "text")
    for at in (logging.DEBUG, logging.INFO, logging.ERROR):
        logging.getLogger(LOGGER).log(at, "x")
    assert said().count("\n") == lines


def test_other_threads_are_about_nothing(said: Callable[[], str]) -> None:
    logs.configure("info", "text")
    with logs.about(model="bert"):
        thread = threading.Thread(target=lambda: logging.getLogger(LOGGER).info("aside"))
        thread.start()
        thread.join()
    assert "bert" not in said()


@pytest.mark.parametrize(("level", "form", "says"), [("debug", "json", True), ("", "", False), ("loud", "xml", False)])
def test_a_child_logs_as_its_environment_says(said: Callable[[], str], level: str, form: str, says: bool) -> None:
    environment: dict[str, str] = {}
    logs.hand_down(level, form, environment)
    logs.configure_child(environment)
    logging.getLogger(LOGGER).debug("x")
    logging.getLogger(LOGGER).info("y")
    lines = said().splitlines()
    assert len(lines) == 1 + says
    assert lines[0].startswith("{") == says
