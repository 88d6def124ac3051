"""Chrome's JSON of a trace."""

from __future__ import annotations

import io
import json

from recorded import DAEMON, a_request

from trims.trace.export import chrome
from trims.trace.reader import Count


def test_spans_counters_and_calls_between_processes_are_written() -> None:
    text = io.StringIO()
    chrome.write(text, a_request().spans, [Count(DAEMON, "cpu_bytes", 1050, 7.0)])
    events = json.loads(text.getvalue())["traceEvents"]
    slices = {each["name"]: each for each in events if each["ph"] == "X"}
    assert set(slices) == {"open", "serve", "plan", "fill", "copy"}
    assert (slices["plan"]["ts"], slices["plan"]["dur"], slices["plan"]["pid"]) == (1.03, 0.02, 2)
    assert slices["plan"]["args"]["image_bytes"] == 4096
    assert slices["copy"]["args"]["unfinished"] is True
    assert "unfinished" not in slices["fill"]["args"]
    assert [(each["ph"], each["pid"]) for each in events if each.get("cat") == "flow"] == [("s", 1), ("f", 2)]
    assert [each["args"] for each in events if each["ph"] == "C"] == [{"value": 7.0}]
    names = {(each["pid"], each["args"]["name"]) for each in events if each["name"] == "process_name"}
    assert names == {(1, "client 1"), (2, "daemon 2")}


def test_no_spans_are_an_empty_trace() -> None:
    text = io.StringIO()
    chrome.write(text, [])
    assert json.loads(text.getvalue())["traceEvents"] == []
