"""The inference endpoint that `trims serve` has beside it: a process of its own, started again when it dies.

The daemon knows it only as a command, `trims endpoint`, and imports nothing of it. The endpoint's standard input is a
pipe that only the daemon holds, so it ends with the daemon, however that ends. Its log lines go where the daemon's go,
in the same form.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from trims.core.errors import ConfigError
from trims.process.python import run_module
from trims.wire.endpoint_file import ERROR_FILE, read_address, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trims.daemon.config import Config

from trims.process.packages import install_words

_log = logging.getLogger(__name__)
#: Seconds until it is started again: doubled at each early death.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
#: Seconds after which an endpoint that ends was not ended by wrong settings.
_SOUND_S = 60.0
#: Requests that run may finish (`drain_s` of the endpoint), and its processes must end.
_GRACE_S = 45.0
_NOT_HERE = "only `trims serve` starts one"


class EndpointKeeper:
    """Starts the endpoint, and starts it again. Constructing it starts nothing.

    Args:
        runtime_dir: Folder of the daemon's sockets, in which the endpoint says where it answers.
        off: Why there is to be none; empty if there is to be one.
        pause_s: Seconds between its first death and the next start.
    """

    def __init__(
        self, command: Sequence[str], runtime_dir: str, off: str = "", *, pause_s: float = _FIRST_PAUSE_S
    ) -> None:
        self._command = command
        self._runtime_dir = runtime_dir
        self._error_file = os.path.join(runtime_dir, ERROR_FILE)
        self._off = off
        self._pause_s = pause_s
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._why = _NOT_HERE

    def start(self) -> None:
        """Have it started in the background."""
        if self._off:
            _log.info("there is no endpoint: %s", self._off)
            return
        self._why = "it is starting"
        self._thread = threading.Thread(target=self._keep, name="trims-endpoint", daemon=True)
        self._thread.start()

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """End it once its running requests have finished, or after the grace. Idempotent."""
        self._ending.set()
        if self._thread is None:
            return
        self._signal(signal.SIGTERM)
        self._thread.join(grace_s)
        if self._thread.is_alive():
            _log.warning("the endpoint did not end within %g s and is killed", grace_s)
            self._signal(signal.SIGKILL)
            self._thread.join()

    def hasten(self) -> None:
        """Have it fail the requests that run, while `stop` waits for them. From any thread."""
        self._signal(signal.SIGTERM)

    def where(self) -> str:
        """Return where the endpoint answers; empty if it does not."""
        process, found = self._process, read_address(self._runtime_dir)
        return found.url if process is not None and found is not None and found.pid == process.pid else ""

    def off(self) -> str:
        """Return why the endpoint does not answer; empty if it does."""
        return "" if self.where() else self._off or self._why

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if self._process is not None:
                self._process.send_signal(number)

    def _keep(self) -> None:
        pause_s = self._pause_s
        while not self._ending.is_set():
            began_s = time.monotonic()
            why = self._live()
            if self._ending.is_set():
                return
            pause_s = self._pause_s if time.monotonic() - began_s > _SOUND_S else pause_s
            level = logging.DEBUG if why == self._why else logging.WARNING  # once for each reason
            _log.log(level, "there is no endpoint: %s; the daemon serves without it and tries again", why)
            self._why = why
            self._ending.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _live(self) -> str:
        """Run it once; returns why it has ended."""
        self._take_error()  # of an endpoint whose daemon was killed
        with self._lock:
            if self._ending.is_set():
                return ""
            try:  # a session of its own: Ctrl-C in a terminal is the daemon's to hand on
                process = self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
                )
            except OSError as error:
                return f"{self._command[0]} cannot be started: {error.strerror}"
        status = process.wait()
        with self._lock:
            self._process = None
        assert process.stdin is not None
        process.stdin.close()
        return self._take_error() or f"its process ended with status {status}; its log lines say more"

    def _take_error(self) -> str:
        told = read_text(self._error_file)
        with contextlib.suppress(OSError):
            os.unlink(self._error_file)
        return told


def endpoint_of(config: Config, missing: Callable[[], str] | None = None) -> EndpointKeeper:
    """Return the endpoint of a daemon with these settings.

    Args:
        missing: Says what is not installed; empty if nothing.

    Raises:
        ConfigError: The endpoint is asked for, and a package that it needs is missing.
    """
    off = "" if config.endpoint != "no" else "the setting endpoint is no"
    if not off:
        off = (missing or _missing)()
        if off and config.endpoint == "yes":
            raise ConfigError(f"the setting endpoint is yes, but {off}")
    command = run_module("trims.cli.main", "endpoint", "--supervised")
    command += ["--runtime-dir", str(config.runtime_dir), "--environments-dir", str(config.environments_dir)]
    command += ["--hide", str(config.state_dir)]
    if config.segment_dir.exists():  # a machine may have no shared memory with names
        command += ["--hide", str(config.segment_dir)]
    command += ["--learned", str(config.state_dir / "learned.json")]
    command += ["--log-level", config.log_level, "--log-format", config.log_format]
    command += ["--grpc-ping-s", f"{config.grpc_ping_s:g}"]
    if config.environments:
        command += ["--environments", ",".join(f"{name}={path}" for name, path in config.environments.items())]
    if config.tenants is not None:
        command += ["--tenants", str(config.tenants)]
    return EndpointKeeper([*command, *config.endpoint_flags], str(config.runtime_dir), off)


def _missing() -> str:
    """Return the first package of the extra `endpoint` that is not installed, with the remedy. Imports none of them."""
    try:
        stated = importlib.metadata.requires("trims") or []
    except importlib.metadata.PackageNotFoundError:
        return "trims is run without being installed, so its command `endpoint` is not found: `pip install` it"
    for requirement in map(Requirement, stated):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": "endpoint"}):
            continue
        try:
            importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            return f"it needs {requirement.name}, which is not installed: {install_words('trims[endpoint]')}"
    return ""
