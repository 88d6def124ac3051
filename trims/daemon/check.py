"""Check of a live daemon's ledger against the facts: invariants, memory, and with `verify` every byte."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import (
    CapacityError,
    CudaError,
    LostPeerError,
    NotSupportedError,
    TrimsError,
)
from trims.core.place import CLOUD, FILE
from trims.tiers.base import DeviceTier
from trims.tiers.transfer import digest_by_reading

if TYPE_CHECKING:
    from trims.store.store import Store
    from trims.tiers.base import Extent


#: Errors that keep a replica's bytes from being read just now, such as a device without room for a context, and prove
#: nothing about them.
_SAYS_NOTHING = (CapacityError, CudaError, LostPeerError, NotSupportedError)


@dataclass(slots=True)
class Report:
    """Findings of a check. No findings is good news."""

    findings: list[str] = field(default_factory=list)
    replicas: int = 0
    verified_bytes: int = 0


def check_store(store: Store, *, verify: bool) -> Report:
    """Check a live store; broken replicas are reported to it, so that no session gets them any more."""
    read = store.read
    report = Report(read.broken_invariants())
    for job, nbytes in read.sealed():
        report.replicas += 1
        try:
            reason = _examine(store, read.extent(job), nbytes, verify=verify)
        except _SAYS_NOTHING as error:
            if read.is_sealed(job):
                report.findings.append(f"{job.key[:16]} at {job.place} cannot be examined now: {error}")
            continue
        except (OSError, ValueError, TrimsError) as error:
            reason = f"it cannot be examined: {error}"
        if reason is None:
            report.verified_bytes += nbytes if verify and job.place not in (FILE, CLOUD) else 0
        elif read.is_sealed(job):  # else it left meanwhile, and what was examined may be another's by now
            report.findings.append(f"{job.key[:16]} at {job.place}: {reason}; it is taken out of service")
            store.report_broken(job.key, job.place, job.generation, reason)
    return report


def _examine(store: Store, extent: Extent | None, nbytes: int, *, verify: bool) -> str | None:
    """Return what is wrong with a replica's memory, or None."""
    if extent is None:
        return "it is sealed in the books and has no memory"
    if extent.place is CLOUD:  # nothing of it is here: its bytes are compared whenever they are fetched
        return None
    with extent.reader() as fd:
        return _examine_open(store, extent, fd, nbytes, verify=verify)


def _examine_open(store: Store, extent: Extent, fd: int, nbytes: int, *, verify: bool) -> str | None:
    status = os.fstat(fd)
    if status.st_size != nbytes:
        return f"it has {status.st_size} bytes, {nbytes} are in the books"
    if extent.named and status.st_nlink == 0:
        return f"{extent.label} was removed"
    if verify and extent.place is not FILE:  # whose artifacts were never sealed: there is nothing to compare with
        tier = store.tiers[extent.place]
        found = tier.digest(extent) if isinstance(tier, DeviceTier) else digest_by_reading(fd, nbytes)
        if found != extent.digest:
            return f"its bytes hash to {found[:16]}..., {extent.digest[:16]}... was sealed"
    return None
