"""Plugin of pytest (`-p others_loaders`) for tests of others: small new files are shared, too, and loads are counted.

The daemon is asked for as long as a file takes to come to memory, so that the first load of a file is from there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trims_client.transparent import file_bytes, install, mxnet_file, report

if TYPE_CHECKING:
    import pytest

#: Variable that names the file of counts.
COUNTS = "OTHERS_COUNTS"
_PATIENCE_S = 60.0


def pytest_configure(config: pytest.Config) -> None:
    """Put the loaders in place before a test module is imported, which may bind load functions by value."""
    del config
    file_bytes._REST_S, file_bytes._PATIENCE_S, file_bytes.LEAST_BYTES = 0.0, _PATIENCE_S, 1
    mxnet_file._LEAST_BYTES = 1
    assert install()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Write what became of the loads."""
    del config
    found = report()
    aside = {f"{loader}: {reason}": count for (loader, reason), count in found.stepped_aside.items()}
    Path(os.environ[COUNTS]).write_text(json.dumps({"shared": found.shared, "aside": aside}))
