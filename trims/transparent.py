"""Loaders of frameworks that read through the store: `import trims.transparent` at the top of a program.

See `trims_client.transparent`. `TRIMS_TRANSPARENT=0` turns them off.
"""

from trims_client.transparent import install, report, uninstall

__all__ = ["install", "report", "uninstall"]

install()
