"""Log lines of the daemon, the endpoint, keepers and predictors: text for people, or a JSON object in each line.

Every line has a time (UTC), a level and the logger; what is done for a model or a request names both, as far as they
are known (`about`). Children of a daemon learn level and form from its environment.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import time
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping

LEVELS = ("debug", "info", "warning", "error")
FORMS = ("text", "json")
LEVEL_VARIABLE, FORM_VARIABLE = "TRIMS_LOG_LEVEL", "TRIMS_LOG_FORMAT"
#: Facts that lines of text show, too.
_SHOWN = ("model", "request")
_PLAIN = re.compile(r"[\w./:@+-]+\Z")
_form = "text"
_facts: ContextVar[Mapping[str, Any]] = ContextVar("trims_log_facts", default=MappingProxyType({}))


def configure(level: str, form: str) -> None:
    """Have this process write its log to standard error.

    Args:
        level: One of `LEVELS`.
        form: One of `FORMS`.
    """
    global _form  # noqa: PLW0603 - a process has one log
    _form = form
    handler = _ToStandardError()
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def configure_child(environment: Mapping[str, str] = os.environ) -> None:
    """Do the same in a child of a daemon, as its environment says; a value that is unknown counts as the default."""
    level, form = environment.get(LEVEL_VARIABLE, "").lower(), environment.get(FORM_VARIABLE, "").lower()
    configure(level if level in LEVELS else "info", form if form in FORMS else "text")


def hand_down(level: str, form: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Have children log as this process does."""
    environment[LEVEL_VARIABLE], environment[FORM_VARIABLE] = level, form


@contextlib.contextmanager
def about(**facts: str) -> Iterator[None]:
    """Have lines of this block, in this thread or task, name what they are about, such as `model` and `request`."""
    token = _facts.set({**_facts.get(), **facts})
    try:
        yield
    finally:
        _facts.reset(token)


def begin_about(**facts: str) -> None:
    """Do the same until the end of this task, or of this thread."""
    _facts.set({**_facts.get(), **facts})


def facts() -> Mapping[str, Any]:
    """Return the fields, such as model and request, that each log line gets in the present context."""
    return _facts.get()


class _ToStandardError(logging.Handler):
    """Writes to what standard error is now: a program that embeds a daemon may exchange it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - an argument that does not fit its message: logging reports it
            self.handleError(record)
            return
        with contextlib.suppress(OSError, ValueError):  # a log that is closed takes nothing
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


class _Text(logging.Formatter):
    """Write `TIME LEVEL LOGGER: MESSAGE [model=M request=R]`."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return text_line(record.created, record.levelname, record.name, text, _facts_of(record))


class _Json(logging.Formatter):
    """Write one JSON object in a line."""

    def format(self, record: logging.LogRecord) -> str:
        traceback = {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        known = {**_facts_of(record), **traceback}
        return json_line(record.created, record.levelname, record.name, record.getMessage(), known)


def _facts_of(record: logging.LogRecord) -> dict[str, Any]:
    return {**_facts.get(), **getattr(record, "facts", {})}


def text_line(at_s: float, level: str, logger: str, message: str, known: Mapping[str, Any]) -> str:
    """Return a line of text, without its newline.

    Args:
        at_s: Seconds since 1970.
        level: Such as `INFO`.
        known: What it is about; `model` and `request` are shown.
    """
    shown = " ".join(f"{name}={_word(known[name])}" for name in _SHOWN if known.get(name))
    return f"{_time(at_s)} {level} {logger}: {message}{f' [{shown}]' if shown else ''}"


def json_line(at_s: float, level: str, logger: str, message: str, known: Mapping[str, Any]) -> str:
    """Return the same as one JSON object, with all that is known as its fields."""
    line = {"time": _time(at_s), "level": level.lower(), "logger": logger, "process": os.getpid(), "message": message}
    return json.dumps({**{name: value for name, value in known.items() if name not in line}, **line}, default=str)


def printed_line(whose: str, known: Mapping[str, str], text: str) -> str:
    """Return the line for what another process printed, in the form of this process's log, without its newline.

    Args:
        whose: The process, such as `predictor 7`.
    """
    return (json_line if _form == "json" else text_line)(time.time(), "INFO", whose, text, known)


def _word(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.match(text) else json.dumps(text)


def _time(at_s: float) -> str:
    whole, part = divmod(at_s, 1)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int(part * 1000):03}Z"
