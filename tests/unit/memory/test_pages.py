"""Pages of an artifact's file: what a mapping knows of them, and that most clients never load them."""

from __future__ import annotations

import subprocess
import sys

from trims.memory.pages import Pages


def test_pages_name_their_file_and_both_places() -> None:
    part = Pages(fd=7, begin=8192, nbytes=4096, offset=0)
    assert part._replace(fd=8) == (8, 8192, 4096, 0)


def test_a_client_that_reads_shared_memory_does_not_load_them() -> None:
    code = "import sys, trims_client.session, trims_client.weights; print('trims.memory.pages' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "False\n"
