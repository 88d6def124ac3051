"""Observation of requests: counts, spans, the log of accesses. Doors: `metrics`, `tracing`, `statistics`."""
