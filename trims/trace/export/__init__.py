"""Exports of traces: `chrome` (JSON), `perfetto` (its protobuf) and `otlp` (OpenTelemetry's collector protocol)."""
