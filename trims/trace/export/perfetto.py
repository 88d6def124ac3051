"""Perfetto's protobuf of traces, which https://ui.perfetto.dev opens and its trace processor queries by SQL.

A process is a track, with one below it for each level, and more where spans of one level overlap. A span whose parent
is in another process has a flow from there. Needs the package `perfetto` (`trims[trace]`).
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from trims.trace.export.lanes import in_lanes, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trims.trace.export.lanes import Lane
    from trims.trace.reader import Count, Process, Record

#: All packets are of one writer, whose names are sent once and called by numbers.
_SEQUENCE = 1
_BEGIN, _END, _VALUE = (
    pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END, pb.TrackEvent.TYPE_COUNTER,
)  # fmt: skip


def write(file: IO[bytes], spans: Iterable[Record], counts: Iterable[Count] = ()) -> None:
    """Write spans and counters.

    Args:
        file: Opened for bytes.
        spans: Spans of any number of processes of one machine, since one start of it.
    """
    _Writer(file).write(list(spans), counts)


class _Writer:
    def __init__(self, file: IO[bytes]) -> None:
        self._builder = StreamingTraceProtoBuilder(file)
        self._names: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._tracks: dict[Any, int] = {}

    def write(self, spans: list[Record], counts: Iterable[Count]) -> None:
        by_id = {each.span_id: each.process for each in spans}
        called = {each.parent_id for each in spans if by_id.get(each.parent_id, each.process) != each.process}
        children: dict[str, list[int]] = {}
        for each in spans:
            if each.parent_id in called and by_id[each.parent_id] != each.process:
                children.setdefault(each.parent_id, []).append(_number(each.span_id))
        end_ns = max((max(each.start_ns, each.end_ns) for each in spans), default=0)
        end = self._packet(0)  # one for all: what differs is written over
        end.track_event.type = _END
        first = self._packet(0, pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED)
        first.trace_packet_defaults.timestamp_clock_id = pb.BUILTIN_CLOCK_MONOTONIC
        self._builder.write_packet(first)
        for span, lane, until_ns in in_lanes(spans, end_ns):
            track = self._track_of(lane)
            flows = list(children.get(span.span_id, ()))
            if by_id.get(span.parent_id, span.process) != span.process:
                flows.append(_number(span.span_id))
            self._begin(span, track, flows, is_first=span.parent_id not in by_id)
            end.timestamp, end.track_event.track_uuid = until_ns, track
            self._builder.write_packet(end)
        for count in counts:
            packet = self._packet(count.at_ns)
            packet.track_event.type, packet.track_event.track_uuid = _VALUE, self._counter_of(count)
            packet.track_event.double_counter_value = count.value
            self._builder.write_packet(packet)

    def _begin(self, span: Record, track: int, flows: list[int], *, is_first: bool) -> None:
        packet = self._packet(span.start_ns)
        event = packet.track_event
        event.type, event.track_uuid = _BEGIN, track
        event.name_iid = self._interned(packet.interned_data.event_names, self._names, span.name)
        event.flow_ids.extend(flows)
        # A trace's id stands at its first span only: at each it would take as much room as all the rest.
        known = {"trace_id": span.trace_id} if is_first else {}
        unfinished = {} if span.is_finished else {"unfinished": True}
        for key, value in (known | span.attributes | unfinished).items():
            annotation = event.debug_annotations.add()
            annotation.name_iid = self._interned(packet.interned_data.debug_annotation_names, self._keys, key)
            _set(annotation, value)
        self._builder.write_packet(packet)

    def _packet(self, at_ns: int, flags: int = pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE) -> Any:
        packet = self._builder.create_packet()
        packet.timestamp, packet.trusted_packet_sequence_id, packet.sequence_flags = at_ns, _SEQUENCE, flags
        return packet

    def _interned(self, field: Any, known: dict[str, int], text: str) -> int:
        if text not in known:
            known[text] = len(known) + 1
            entry = field.add()
            entry.iid, entry.name = known[text], text
        return known[text]

    def _track(self, key: Any, describe: Any) -> int:
        if key not in self._tracks:
            uuid = self._tracks[key] = len(self._tracks) + 1
            packet = self._builder.create_packet()
            packet.trusted_packet_sequence_id = _SEQUENCE
            packet.track_descriptor.uuid = uuid
            describe(packet.track_descriptor)
            self._builder.write_packet(packet)
        return self._tracks[key]

    def _process_of(self, process: Process) -> int:
        def describe(track: Any) -> None:
            track.process.pid, track.process.process_name = process.pid, process.role

        return self._track(process, describe)

    def _track_of(self, lane: Lane) -> int:
        parent = self._process_of(lane[0])

        def describe(track: Any) -> None:
            track.parent_uuid, track.name = parent, name_of(lane)

        return self._track(lane, describe)

    def _counter_of(self, count: Count) -> int:
        parent = self._process_of(count.process)

        def describe(track: Any) -> None:
            track.parent_uuid, track.name = parent, count.name
            track.counter.SetInParent()
            if count.name.endswith("_bytes"):
                track.counter.unit = pb.CounterDescriptor.UNIT_SIZE_BYTES

        return self._track((count.process, count.name), describe)


def _number(span_id: str) -> int:
    return int(span_id, 16)


def _set(annotation: Any, value: object) -> None:
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    else:
        annotation.string_value = str(value)
