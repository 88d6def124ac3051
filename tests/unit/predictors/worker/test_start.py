"""The start of a child's program: a group of its own, and descriptors that its own children do not get."""

from __future__ import annotations

import json
import os
import subprocess
import sys

_PROGRAM = """
import json, os, sys
from trims_predictors.worker.start import begin
options = begin()
inherited = [os.get_inheritable(fd) for fd in (options.socket, options.lifeline)]
print(json.dumps([os.getpgid(0) == os.getpid(), inherited, options.runtime_dir, options.writable]))
"""


def test_a_child_leads_its_group_and_keeps_its_descriptors_to_itself() -> None:
    ours, theirs = os.pipe()
    try:
        words = ["--socket", str(ours), "--lifeline", str(theirs), "--runtime-dir", "/run/x"]
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *words, "--writable", ""],
            pass_fds=(ours, theirs), capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    assert json.loads(done.stdout) == [True, [False, False], "/run/x", ""]
