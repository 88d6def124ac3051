"""Files that are read by ranges over HTTP, from a server itself, a signed address, or a hub."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from trims.core.errors import SourceRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trims.sources.base import Destination, Part, RemoteFile
    from trims.sources.http.client import Http, Location

#: Share of the time for which a location is good after which another one is asked for.
_RENEW_AT = 0.8


class RangedFiles:
    """An `Opened` whose files are read from locations. A location that is refused is asked for once more.

    Args:
        locate: Returns where a file can be read now. May block; called by several threads.
    """

    def __init__(
        self,
        http: Http,
        pinned: str,
        files: Sequence[RemoteFile],
        locate: Callable[[RemoteFile], Location],
        *,
        destination: Destination | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.pinned, self.files = pinned, files
        self.destination, self.notes = destination, notes
        self._http = http
        self._locate = locate
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Location, float]] = {}

    def fill(self, file: RemoteFile, parts: Sequence[Part]) -> Iterator[None]:
        """See `Opened.fill`."""
        name, filled = f"{self.pinned} {file.name}".rstrip(), 0
        location = self._location(file)
        try:
            for _ in self._http.fill(location, file, parts, name):
                filled += 1
                yield
        except SourceRefusedError:
            if filled or not self._forget(file, location):  # one that was just made is refused for another reason
                raise
        else:
            return
        yield from self._http.fill(self._location(file), file, parts, name)

    def close(self) -> None:
        """See `Opened.close`."""
        self._http.close()

    def _location(self, file: RemoteFile) -> Location:
        with self._lock:
            location, until_s = self._known.get(file.name, (None, 0.0))
        if location is not None and time.monotonic() < until_s:
            return location
        made_at_s = time.monotonic()  # not the wall clock, which may be set while a signature is good
        location = self._locate(file)
        good_for_s = float("inf") if location.good_for_s is None else location.good_for_s * _RENEW_AT
        with self._lock:
            self._known[file.name] = location, made_at_s + good_for_s
        return location

    def _forget(self, file: RemoteFile, location: Location) -> bool:
        """Forget a location that was refused. Return whether another one may be better: this one has an end."""
        with self._lock:
            known = self._known.get(file.name)
            if known is not None and known[0] is location:
                del self._known[file.name]
        return location.good_for_s is not None
