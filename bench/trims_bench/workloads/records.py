"""Records of requests, as the generator's process packs them and the command reads them.

Times are nanoseconds after the beginning of the load; -1 for what never happened.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Number of the request, model, status, cold, intended, sent, first byte, done.
RECORD = struct.Struct("<IHhh6xqqqq")
_FIELDS = (
    ("number", "<u4", 0), ("model", "<u2", 4), ("status", "<i2", 6), ("cold", "<i2", 8),
    ("intended", "<i8", 16), ("sent", "<i8", 24), ("first", "<i8", 32), ("done", "<i8", 40),
)  # fmt: skip
#: First byte of a packet with records; the others are JSON.
RECORDS = b"R"
#: Records of a packet, at most.
MOST_RECORDS = 1000
#: Nanoseconds after its intended time from which on a request was sent late.
LATE_NS = 1_000_000
NEVER = -1

#: Statuses of requests that have no status of HTTP.
REFUSED, CLOSED, DEADLINE, UNSENT, NO_HTTP, STOPPED, NO_CONNECTION = -1, -2, -3, -4, -5, -6, -7
#: Words for statuses below 100, as keys of the errors in a result.
KINDS = {
    REFUSED: "refused", CLOSED: "closed", DEADLINE: "deadline", UNSENT: "unsent", NO_HTTP: "no_http",
    STOPPED: "stopped", NO_CONNECTION: "no_connection",
}  # fmt: skip
#: Whether an answer was cold.
WARM, COLD, UNKNOWN = 0, 1, -1


def unpacked(packed: bytes | bytearray) -> NDArray[Any]:
    """Return the records as an array with named fields, in the order of their numbers."""
    import numpy as np

    names, formats, offsets = zip(*_FIELDS, strict=True)
    kind = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": RECORD.size})
    found = np.frombuffer(bytes(packed), dtype=kind)
    return found[np.argsort(found["number"], kind="stable")]


def kind_of(status: int) -> str:
    """Return the word for a request's outcome: a status of HTTP as it is."""
    return KINDS.get(status, str(status))


def is_answered(records: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which requests have an answer that is no error."""
    found: NDArray[np.bool_] = (records["status"] >= 200) & (records["status"] < 300)
    return found
