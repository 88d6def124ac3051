"""Export to a collector that listens, and to one that does not, and what is logged of that."""

from __future__ import annotations

import logging
import logging.config
from typing import TYPE_CHECKING

import pytest
from recorded import CLIENT, TRACE, a_request, span_id

from trims.core.errors import DaemonAwayError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectors import Collector

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no SDK: pip install 'trims[otel]'")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    from collectors import Collector

    made = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    yield made
    made.close()


def test_spans_are_sent_with_their_processes_on_one_clock(collector: Collector) -> None:
    from trims.trace.export.otlp import export

    assert export(a_request().spans) == 5
    assert collector.services == {"trims-client", "trims-daemon"}
    sent = {each.name: each for each in collector.spans}
    assert (sent["plan"].trace, sent["plan"].own, sent["plan"].parent) == (TRACE, span_id("plan"), span_id("serve"))
    assert sent["open"].parent == ""
    assert sent["plan"].begin_ns == CLIENT.wall_ns(1030)
    assert sent["plan"].attributes == {"image_bytes": 4096, "trims.level": "model", "thread.id": 7}
    assert (sent["plan"].status, sent["copy"].status) == (0, 2)
    assert sent["copy"].attributes["trims.unfinished"] is True


def test_a_collector_that_does_not_listen_is_an_error(collector: Collector) -> None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    from trims.trace.export.otlp import export

    collector.close()
    with pytest.raises(DaemonAwayError):
        export(a_request().spans, OTLPSpanExporter(timeout=1))


def test_nothing_is_sent_of_nothing() -> None:
    from trims.trace.export.otlp import export

    assert export([]) == 0


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the log lines about traces."""
    found: list[str] = []
    monkeypatch.setattr("trims.trace.export.otlp._log.warning", lambda text, *given: found.append(text % given))
    yield found
    logger = logging.getLogger("opentelemetry")
    logger.handlers, logger.propagate = [], True


def test_what_the_sdk_logs_is_passed_on_once_a_minute_and_without_its_traceback(logged: list[str]) -> None:
    from trims.trace.export.otlp import Complaints

    now = 100.0
    complaints = Complaints(lambda: now)
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})  # as uvicorn does
    log = logging.getLogger("opentelemetry.exporter.anything")
    assert not complaints.are_recent()
    for _ in range(3):
        log.error("nothing listens at %s", "there", exc_info=ValueError("long"))
    assert logged == ["traces: nothing listens at there (logged once a minute)"]
    assert complaints.are_recent()
    now = 160.0
    assert not complaints.are_recent()
    log.warning("still not")
    assert len(logged) == 2
