"""Check of a live daemon's ledger against the facts: invariants, memory, and with `verify` every byte."""

from __future__ import annotations

import os
from collections import Counter
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
from trims.keeper.messages import Verdict
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
    """Findings of a check. No findings is good news.

    Attributes:
        findings: A sentence for each fault.
        verified_by: Bytes that were verified, by way: `blake3`, or how a device summed them (see `Verdict`).
    """

    findings: list[str] = field(default_factory=list)
    replicas: int = 0
    verified_by: Counter[str] = field(default_factory=Counter)

    @property
    def verified_bytes(self) -> int:
        """Return the bytes that were verified, in any way."""
        return self.verified_by.total()


def check_store(store: Store, *, verify: bool) -> Report:
    """Check a live store; broken replicas are reported to it, so that no session gets them any more."""
    read = store.read
    report = Report(read.broken_invariants())
    for job, nbytes in read.sealed():
        report.replicas += 1
        try:
            reason, way = _examine(store, read.extent(job), nbytes, verify=verify)
        except _SAYS_NOTHING as error:
            if read.is_sealed(job):
                report.findings.append(f"{job.key[:16]} at {job.place} cannot be examined now: {error}")
            continue
        except (OSError, ValueError, TrimsError) as error:
            reason, way = f"it cannot be examined: {error}", ""
        if not reason:
            report.verified_by.update({way: nbytes} if way else {})
        elif read.is_sealed(job):  # else it left meanwhile, and what was examined may be another's by now
            report.findings.append(f"{job.key[:16]} at {job.place}: {reason}; it is taken out of service")
            store.report_broken(job.key, job.place, job.generation, reason)
    return report


def _examine(store: Store, extent: Extent | None, nbytes: int, *, verify: bool) -> tuple[str, str]:
    """Return what is wrong with a replica's memory, and the way in which its bytes were verified; empty for nothing."""
    if extent is None:
        return "it is sealed in the books and has no memory", ""
    if extent.place is CLOUD:  # nothing of it is here: its bytes are compared whenever they are fetched
        return "", ""
    with extent.reader() as fd:
        wrong = _looks_wrong(extent, os.fstat(fd), nbytes)
        if wrong or not verify or extent.place is FILE:  # artifacts were never sealed: there is nothing to compare with
            return wrong, ""
        tier = store.tiers[extent.place]
        if isinstance(tier, DeviceTier):
            verdict = tier.examine(extent)
        else:
            verdict = Verdict("blake3", digest_by_reading(fd, nbytes), extent.digest)
        return verdict.wrong, verdict.way


def _looks_wrong(extent: Extent, status: os.stat_result, nbytes: int) -> str:
    if status.st_size != nbytes:
        return f"it has {status.st_size} bytes, {nbytes} are in the books"
    if extent.named and status.st_nlink == 0:
        return f"{extent.label} was removed"
    return ""
