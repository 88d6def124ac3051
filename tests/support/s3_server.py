"""A real S3 server (moto's) in a process of its own, and a client of AWS's to look at what it has."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_S = 60.0
#: Keys that the server takes as it takes any.
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAMADEUP", "AWS_SECRET_ACCESS_KEY": "made-up-secret"}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Give the server's address for a block; the server ends with it, or with this process."""
    command = [sys.executable, "-W", "ignore", __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{_port(process)}"
        finally:
            process.kill()


def _port(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    said, until = b"", time.monotonic() + _START_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not said.endswith(b"\n"):
            assert selector.select(until - time.monotonic()), "the S3 server did not come up"
            more = os.read(process.stdout.fileno(), 100)
            assert more, "the S3 server ended"
            said += more
    return int(said)


@contextlib.contextmanager
def s3_client(endpoint: str) -> Iterator[Any]:
    """Give a client of AWS's own for a block."""
    import boto3

    keys = {"aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"]}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    try:
        yield client
    finally:
        client.close()


def main() -> None:
    """Serve until standard input ends."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    os.write(1, b"%d\n" % server.get_host_and_port()[1])
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
