"""ONNX Runtime's profiling around one run.

Profiling is a matter of a whole session and cannot be begun twice in it. So a traced request has a session of its own,
over the same weights and with the same options, which has run once before; the other requests' session knows nothing of
it. ONNX Runtime writes its profile to a file: in a private folder, which is removed as soon as the file is open, so
nothing stays if this process is killed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any, Protocol

from trims.core.errors import PredictorError
from trims_predictors.frameworks.profiles.onnx_profile import profile_of
from trims_predictors.frameworks.profiling import offset_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.trace.levels import Level
    from trims_predictors.api import Arrays
    from trims_predictors.frameworks.profiles.event import Profile

#: Bytes of a profile, at most: 10,000 nodes have some 10 MB.
_MOST_BYTES = 64 << 20


class _Host(Protocol):
    """The predictor."""

    def profiling_session(self, prefix: str) -> Any:
        """Return a session like its own that writes its profile to a file whose name begins so."""

    def exchange_session(self, session: Any) -> Any:
        """Run with another session from now on; return the one before."""

    def predict(self, inputs: Arrays) -> Arrays:
        """Run."""


class OnnxProfiler:
    """See `Profiler`.

    Args:
        inner: Returns the session that runs, for one that has others inside.
    """

    def __init__(self, host: _Host, inner: Callable[[Any], Any]) -> None:
        self._host = host
        self._inner = inner
        self._before: Any = None
        self._session: Any = None
        self._files: list[int] = []
        self._offset_ns = 0

    def start(self, level: Level, inputs: Arrays) -> None:
        """See `Profiler`. Its session is made, and runs once."""
        del level
        folder = tempfile.mkdtemp(prefix="trims-profile-")
        try:
            self._session = self._host.profiling_session(os.path.join(folder, "run"))
            self._before = self._host.exchange_session(self._session)
            self._host.predict(inputs)
            self._files = [os.open(each.path, os.O_RDONLY | os.O_CLOEXEC) for each in _in_order(folder)]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._offset_ns = offset_ns()

    def stop(self) -> Profile:
        """See `Profiler`."""
        try:
            self._host.exchange_session(self._before)
            ran = self._inner(self._session)
            start_ns = ran.get_profiling_start_time_ns()
            ran.end_profiling()
            moved = abs(offset_ns() - self._offset_ns)
            text = self._text(is_inner=ran is not self._session)
        finally:
            self._close()
        return profile_of(text, start_ns + self._offset_ns, clock_error_ns=moved)

    def abandon(self) -> None:
        """See `Profiler`."""
        if self._before is not None:
            self._host.exchange_session(self._before)
        self._close()

    def _text(self, *, is_inner: bool) -> str:
        """Return the profile: sessions write one file each, the inner one that with the later name."""
        if not self._files:
            raise PredictorError("ONNX Runtime wrote no profile")
        fd = self._files[-1] if is_inner else self._files[0]
        nbytes = os.fstat(fd).st_size
        if nbytes > _MOST_BYTES:
            raise PredictorError(f"ONNX Runtime's profile has {nbytes:,} bytes; {_MOST_BYTES:,} are the most")
        with open(fd, "rb", closefd=False) as file:
            return file.read().decode(errors="replace")

    def _close(self) -> None:
        self._session = None
        while self._files:
            os.close(self._files.pop())


def _in_order(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return sorted(found, key=lambda each: each.name)
