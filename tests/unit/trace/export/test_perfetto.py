"""Perfetto's protobuf of a trace, read back by the package's own messages."""

from __future__ import annotations

import io
from typing import Any

import pytest
from recorded import DAEMON, a_request

from trims.trace.reader import Count

pytest.importorskip("perfetto", reason="no perfetto: pip install 'trims[trace]'")


def read_back() -> Any:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    from trims.trace.export import perfetto

    file = io.BytesIO()
    perfetto.write(file, a_request().spans, [Count(DAEMON, "cpu_bytes", 1050, 7.0)])
    return Trace.FromString(file.getvalue())


def test_each_span_begins_and_ends_on_a_track_of_its_process_and_level() -> None:
    packets = read_back().packet
    tracks = {
        each.track_descriptor.uuid: each.track_descriptor for each in packets if each.HasField("track_descriptor")
    }
    names = {entry.iid: entry.name for each in packets for entry in each.interned_data.event_names}
    begins = {names[each.track_event.name_iid]: each for each in packets if each.track_event.type == 1}
    assert set(begins) == {"open", "serve", "plan", "fill", "copy"}
    assert begins["plan"].timestamp == 1030
    plan = tracks[begins["plan"].track_event.track_uuid]
    assert (plan.name, tracks[plan.parent_uuid].process.pid) == ("model", 2)
    assert tracks[tracks[begins["open"].track_event.track_uuid].parent_uuid].process.process_name == "client"
    ends = [each.timestamp for each in packets if each.track_event.type == 2]
    assert sorted(ends) == [1050, 1060, 1080, 1100, 1100], "an unfinished span ends with the trace"


def test_a_call_of_another_process_is_a_flow_and_a_counter_a_track() -> None:
    packets = read_back().packet
    flows = [list(each.track_event.flow_ids) for each in packets if each.track_event.flow_ids]
    assert len(flows) == 2
    assert flows[0] == flows[1]
    (value,) = [each.track_event for each in packets if each.track_event.type == 4]
    (counter,) = [each.track_descriptor for each in packets if each.track_descriptor.HasField("counter")]
    assert (value.double_counter_value, value.track_uuid, counter.name) == (7.0, counter.uuid, "cpu_bytes")


def test_attributes_keep_their_types() -> None:
    packets = read_back().packet
    keys = {entry.iid: entry.name for each in packets for entry in each.interned_data.debug_annotation_names}
    notes = {keys[note.name_iid]: note for each in packets for note in each.track_event.debug_annotations}
    assert (notes["image_bytes"].int_value, notes["share"].double_value, notes["warm"].bool_value) == (4096, 0.5, True)
    assert (notes["model"].string_value, notes["unfinished"].bool_value) == ("m", True)
