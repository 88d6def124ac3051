"""Loaders of frameworks that read through the store, in programs that nothing was changed in.

`install` puts adapters in the place of the frameworks' own load functions, now or as soon as a framework is imported.
An adapter gives the original the bytes of a file from shared memory, copy-on-write, and returns what the original makes
of them. Whatever an adapter cannot do, the original does as ever, and the reason is counted. Not covered: files that
are not in shared memory yet, which the daemon brings there behind the original's load.

Nothing but hooks is imported until a framework is: a program that loads no model pays two milliseconds at most.

Doors: `outcomes`.
"""

from trims_client.transparent.adapters import install, uninstall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trims_client.transparent.outcomes import Report

__all__ = ["install", "report", "uninstall"]


def report() -> "Report":
    """Return what became of the loads of this process so far."""
    from trims_client.transparent.outcomes import report

    return report()
