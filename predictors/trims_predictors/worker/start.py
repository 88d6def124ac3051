"""The start of a child's program: what the supervisor gives it, and what it gives up."""

from __future__ import annotations

import argparse
import os

from trims_predictors.sandbox.landlock import restrict


def begin() -> argparse.Namespace:
    """Read what the supervisor starts a program with, and lead a group of one's own.

    A lifeline ends the whole group, which must not be the endpoint's. With `--writable` the process gives up writing to
    files anywhere but beneath that folder (see `landlock`).
    """
    parser = argparse.ArgumentParser()
    for name in ("--socket", "--lifeline"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--runtime-dir", required=True)
    parser.add_argument("--writable", default="")
    options = parser.parse_args()
    if options.writable:
        restrict([options.writable])
    for fd in (options.socket, options.lifeline):
        os.set_inheritable(fd, False)
    os.setsid()
    return options
