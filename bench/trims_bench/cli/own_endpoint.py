"""An endpoint that a command starts for itself, beside the daemon and whatever endpoint that has."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

from trims.core.errors import PredictorError
from trims.process.python import run_module
from trims.wire.endpoint_file import ERROR_FILE, read_address, read_text
from trims_bench.child import end

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_START_S = 60.0
#: Seconds for its predictors to end, more than it gives running requests.
_END_S = 45.0
_LOOK_S = 0.02
_LAST_WORDS = 2000


@contextlib.contextmanager
def own_endpoint(runtime_dir: str, options: argparse.Namespace) -> Iterator[str]:
    """Run an endpoint of the daemon's models for the length of a block; it ends with this process, however that ends.

    Args:
        options: Options of the command: where predictors run (see `endpoint.add_environments`).

    Yields:
        Its URL.

    Raises:
        PredictorError: The endpoint does not start; the error has its words.
    """
    with tempfile.TemporaryDirectory(prefix="trims-endpoint-") as folder:
        command = run_module(
            "trims.cli.main", "endpoint", "--runtime-dir", runtime_dir, "--port", "0", "--grpc-port", "none",
            "--supervised", "--address-dir", folder, "--log-level", "warning", "--environments", options.environments,
        )  # fmt: skip
        if options.environments_dir is not None:
            command += ["--environments-dir", str(options.environments_dir)]
        log = os.path.join(folder, "log")
        with open(log, "wb") as file:
            # In a session of its own: Ctrl-C is for the command, which reports what there is and then ends it.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True
            )  # fmt: skip
        try:
            yield _url(process, folder, log)
        finally:
            end(process, _END_S)
            assert process.stdin is not None, "a pipe"
            process.stdin.close()


def _url(process: subprocess.Popen[bytes], folder: str, log: str) -> str:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        found = read_address(folder)
        if found is not None:
            return found.url
        if process.poll() is not None:
            break
        time.sleep(_LOOK_S)
    words = read_text(os.path.join(folder, ERROR_FILE)) or read_text(log).strip()[-_LAST_WORDS:]
    what = f"did not start within {_START_S:g} s" if process.poll() is None else "did not start"
    raise PredictorError(f"the endpoint of this evaluation {what}: {words or 'it said nothing'}")
