"""Keepalive pings of gRPC clients, which our servers must let pass: a run may take longer than a client is silent.

By its defaults a gRPC server ends a connection, with all calls on it, when a client pings more than twice within five
minutes while no data flows ("Too many pings").
"""

from __future__ import annotations

#: Least seconds between two pings of a client, by default.
PING_S = 0.1
#: A day, beyond which there is no difference; gRPC counts milliseconds in 32 bits.
_LONGEST_S = 86_400.0


def ping_options(least_s: float) -> list[tuple[str, int]]:
    """Return options of a gRPC server for clients that ping.

    Args:
        least_s: Seconds between two pings of a client; one that pings more often loses its connection. 0 for any.
    """
    return [
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", round(1000 * min(least_s, _LONGEST_S))),
        *([] if least_s else [("grpc.http2.max_ping_strikes", 0)]),
    ]
