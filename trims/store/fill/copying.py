"""Copies between places: host to host, to a device, from a device, between devices. Each checks its source.

A source is hashed on the way when its bytes were not seen to be right in this life, or its file was touched since.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from trims.background.task import Order, SourceFailedError, Task
from trims.core.errors import ImageError, LostPeerError
from trims.image.peek import runs_code
from trims.store.fill.plans import SHUTTING_DOWN
from trims.store.work import step_back
from trims.tiers.base import DeviceTier, RemoteTier, identity_of
from trims.tiers.transfer import (
    check_bytes,
    copy,
    default_threads,
    digest_by_reading,
    digest_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.background.rate_limit import Behind
    from trims.memory.large_pages import LargePages
    from trims.tiers.base import Draft, Extent, Tier


class HostBytes(Protocol):
    """The bytes of files and shared memory. The simulation has its own."""

    def identity(self, fd: int) -> tuple[int, ...]:
        """Return numbers that change when the file is touched."""
        ...

    def check(self, fd: int, nbytes: int) -> None:
        """Raise ImageError if the file is no image."""
        ...

    def runs_code(self, fd: int, nbytes: int) -> bool:
        """Return whether the program of an image runs code when it is used."""
        ...

    def digest(self, fd: int, nbytes: int, behind: Behind | None = None) -> str:
        """Return the file's blake3 digest in hex, rate-limited while no request waits for it."""
        ...

    def digest_of_untrusted(self, fd: int, nbytes: int) -> str:
        """Return the digest of a file that may be cut short meanwhile."""
        ...

    def copy(
        self,
        source_fd: int,
        target_fd: int,
        nbytes: int,
        on_progress: Callable[[int], None],
        pages: LargePages | None,
    ) -> None:
        """Copy; raises ImageError for a source that is too short, OSError for a full target."""
        ...

    def copy_behind(
        self, source_fd: int, draft: Draft, on_progress: Callable[[int], None], behind: Behind
    ) -> str | None:
        """Copy rate-limited while no request waits for the copy. Return the digest of the copied bytes.

        Return None when a request starts waiting: the caller then copies again, into an empty draft.
        """
        ...

    def stop(self) -> None:
        """Stop copies that run, and wait for their end."""
        ...


class RealHostBytes:
    """`HostBytes` of this machine. All copies share their threads: more than processors only slow the doors."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._readers = ThreadPoolExecutor(default_threads(), thread_name_prefix="trims-copy", initializer=step_back)

    def identity(self, fd: int) -> tuple[int, ...]:
        """See `HostBytes.identity`."""
        return identity_of(fd)

    def check(self, fd: int, nbytes: int) -> None:
        """See `HostBytes.check`."""
        check_bytes(fd, nbytes)

    def runs_code(self, fd: int, nbytes: int) -> bool:
        """See `HostBytes.runs_code`."""
        return runs_code(fd, nbytes)

    def digest(self, fd: int, nbytes: int, behind: Behind | None = None) -> str:
        """See `HostBytes.digest`."""
        if behind is not None:
            try:
                digests = behind.carry(Order(Task.of_file(nbytes), [fd]))
            except SourceFailedError as error:
                raise ImageError(str(error)) from error
            if digests is not None:
                return digests["blake3"]
        return digest_of(fd, nbytes)

    def digest_of_untrusted(self, fd: int, nbytes: int) -> str:
        """See `HostBytes.digest_of_untrusted`."""
        return digest_by_reading(fd, nbytes)

    def copy(
        self,
        source_fd: int,
        target_fd: int,
        nbytes: int,
        on_progress: Callable[[int], None],
        pages: LargePages | None,
    ) -> None:
        """See `HostBytes.copy`."""
        copy(
            source_fd,
            target_fd,
            nbytes,
            on_progress=on_progress,
            cancelled=self._stopping,
            readers=self._readers,
            pages=pages,
        )

    def copy_behind(
        self, source_fd: int, draft: Draft, on_progress: Callable[[int], None], behind: Behind
    ) -> str | None:
        """See `HostBytes.copy_behind`."""
        task = Task.of_file(draft.nbytes, large_pages=draft.pages is not None)
        try:
            digests = behind.carry(Order(task, [source_fd], draft.fd), on_progress)
        except SourceFailedError as error:
            raise ImageError(str(error)) from error
        return None if digests is None else digests["blake3"]

    def stop(self) -> None:
        """See `HostBytes.stop`."""
        self._stopping.set()
        self._readers.shutdown(wait=True)


class Copier:
    """Copies one replica to another place.

    Args:
        stopping: Set when the daemon ends: a copy to or from a device stops at its next report of progress.
    """

    def __init__(self, host: HostBytes, stopping: threading.Event) -> None:
        self._host = host
        self._stopping = stopping

    def copy(
        self,
        target: Tier,
        draft: Draft,
        origin: Tier,
        source: Extent,
        on_progress: Callable[[int], None],
        *,
        behind: Behind | None = None,
    ) -> str | None:
        """Fill a draft. Return the digest of its contents. With `behind`, no request waits for the draft.

        Return None when a request starts waiting: the caller then fills an empty draft without `behind`.

        Raises ImageError if the source's bytes are wrong, LostPeerError if the daemon ends, OSError as `HostBytes`.
        """

        def report(done_bytes: int) -> None:
            if self._stopping.is_set():
                raise LostPeerError(f"the copy was stopped: {SHUTTING_DOWN}")
            on_progress(done_bytes)

        if isinstance(origin, RemoteTier):
            origin.fetch(source, draft, on_progress, self._stopping.is_set)
            self._host.check(draft.fd, draft.nbytes)  # a publisher is not trusted with the form
            self._prove(draft, origin, source)
        elif isinstance(target, DeviceTier):
            if isinstance(origin, DeviceTier):
                target.copy_across(draft, source, report)
                return source.digest
            with self._checking(source):
                target.copy_in(draft, source, report)
        elif isinstance(origin, DeviceTier):
            origin.copy_out(source, draft, report)
            self._check(source, draft.fd, self._host.digest)
        elif behind is not None:
            digest = self._host.copy_behind(source.fd, draft, on_progress, behind)
            if digest is None:
                return None
            self._compare(source, digest)
        else:
            self._host.copy(source.fd, draft.fd, draft.nbytes, on_progress, draft.pages)
            self._check(source, draft.fd, self._host.digest)
        return source.digest

    def _prove(self, draft: Draft, origin: RemoteTier, source: Extent) -> None:
        """Hash what was fetched before it is lent, if it may run code, or was found broken behind its readers before.

        The checksums of the way keep no attacker out. What holds tensors only is hashed behind its first readers.
        """
        if not (origin.doubts(source.key) or self._host.runs_code(draft.fd, draft.nbytes)):
            return
        found = self._host.digest(draft.fd, draft.nbytes)
        if found != source.digest:
            raise ImageError(
                f"the image at {source.label} is not as it was described: it hashes to {found[:16]}..., "
                f"{source.digest[:16]}... is stated; push the model again, or see who wrote there"
            )

    @contextlib.contextmanager
    def _checking(self, source: Extent) -> Iterator[None]:
        """Hash the source while the block copies it: what lies on a device cannot be read back cheaply."""
        if self._is_known(source):
            yield
            return
        with ThreadPoolExecutor(1, thread_name_prefix="trims-check") as pool:
            checked = pool.submit(self._check, source, source.fd, self._host.digest_of_untrusted)
            yield
            checked.result()

    def _check(self, source: Extent, fd: int, digest: Callable[[int, int], str]) -> None:
        """Hash the source's bytes, which `fd` has, unless they are known to be as they were sealed."""
        if self._is_known(source):
            return
        self._compare(source, digest(fd, source.nbytes))

    def _compare(self, source: Extent, found: str) -> None:
        if found != source.digest:
            raise ImageError(
                f"the replica at {source.place} ({source.label}) hashes to {found[:16]}..., "
                f"{source.digest[:16]}... was sealed: changed or truncated"
            )
        source.fresh, source.identity = True, self._host.identity(source.fd)

    def _is_known(self, extent: Extent) -> bool:
        """Return whether its bytes were seen to be right in this life, and the file was not touched since."""
        return extent.fresh and extent.identity in (None, self._host.identity(extent.fd))
