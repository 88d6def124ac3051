"""Running this command again where a tmpfs with large pages is mounted: for it alone, gone with it.

The mount lies in a namespace of its own; a user who is not root gets one in which he is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from trims.core.errors import NotSupportedError

_MOUNT = 'mount -t tmpfs -o huge=within_size,mode=0700 tmpfs "$0" && exec "$@"'


def with_large_pages() -> int:
    """The same command line with `--segment-dir`; returns its exit status. Raises NotSupportedError."""
    own_mounts = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0:
        own_mounts += ["--user", "--map-root-user"]
    with tempfile.TemporaryDirectory(prefix="trims-segments-") as folder:
        within = [*own_mounts, "sh", "-c", _MOUNT, folder]
        try:
            tried = subprocess.run([*within, "true"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise NotSupportedError("unshare of util-linux is not installed; leave --large-pages out") from None
        if tried.returncode != 0:
            raise NotSupportedError(
                f"a tmpfs cannot be mounted here: {tried.stderr.strip()}; leave --large-pages out, or have one mounted "
                f"and name it with --segment-dir"
            )
        again = [sys.executable, "-m", "trims.cli.main", *sys.argv[1:], "--segment-dir", folder]
        return subprocess.run([*within, *again], check=False).returncode
