"""The bare stub of a control door, for tests of what `trims.control` would not send."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from trims.wire import trims_pb2_grpc
from trims.wire.address import CONTROL_SOCKET, default_runtime_dir
from trims.wire.status import error_from

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def control(runtime_dir: str | None) -> Iterator[Any]:
    """Yield a stub of the control door. Errors of calls inside the block become errors of the tree."""
    address = Path(runtime_dir or default_runtime_dir()).absolute() / CONTROL_SOCKET
    with grpc.insecure_channel(f"unix:{address}") as channel:
        try:
            yield trims_pb2_grpc.ControlStub(channel)  # type: ignore[no-untyped-call] # generated code has no types
        except grpc.RpcError as error:
            raise error_from(error, str(address)) from error
