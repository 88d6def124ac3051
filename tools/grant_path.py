"""How far one warm grant travels through the code: calls, and changes of file, inside `trims/core` and `trims/store`.

    python tools/grant_path.py

A daemon's store in this process grants a model that is resident. Each Python function that is entered in those two
packages counts as a call, comprehensions and properties included; a change of file is a call from another file than
the last one was in. The answer goes to the caller's function, as it goes to the door's in a daemon. Two grants are
looked at: of a model that other leases hold already, and of an idle one, whose bytes begin to count as leased.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

import trims
from trims.daemon.config import build_config
from trims.daemon.main import Daemon

if TYPE_CHECKING:
    from types import FrameType

    from trims.store.pending_requests import Granted

_WATCHED = tuple(str(Path(trims.__file__).parent / name) for name in ("core", "store"))
_WAIT_S = 60.0


def path_of_a_warm_grant(*, idle: bool = False) -> list[str]:
    """`file:function` of each call, in order.

    Args:
        idle: No other lease holds the model.
    """
    calls: list[str] = []
    answers: list[Any] = []

    def look(frame: FrameType, event: str, argument: Any) -> None:
        del argument
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(_WATCHED):
            calls.append(f"{Path(file).relative_to(Path(trims.__file__).parent)}:{frame.f_code.co_name}")

    with tempfile.TemporaryDirectory() as folder:
        save_file({"weight": np.zeros(8)}, f"{folder}/m.safetensors")
        settings = {"runtime_dir": f"{folder}/run", "state_dir": f"{folder}/state", "gpus": "none"}
        daemon = Daemon(build_config(settings, environment={}))
        daemon.start()
        try:
            session, name = daemon.store.begin_session(), f"file:{folder}/m.safetensors"
            daemon.store.load(name).result(_WAIT_S)
            daemon.store.open(name, answers.append, session=session)
            first: Granted = answers.pop()
            if idle:
                daemon.store.close(session, first.lease)
            sys.setprofile(look)
            daemon.store.open(name, answers.append, session=session)
            sys.setprofile(None)
            assert answers.pop().warm
            daemon.store.end_session(session)  # a purge waits for leases
        finally:
            daemon.ask_to_end(purge=True)
            daemon.stop()
    return calls


def changes_of_file(calls: list[str]) -> int:
    """How often a call is in another file than the one before it."""
    files = [call.partition(":")[0] for call in calls]
    return sum(one != other for one, other in itertools.pairwise(files))


def main() -> None:
    """Print both ways, and the numbers of each."""
    for idle in (False, True):
        calls = path_of_a_warm_grant(idle=idle)
        print("\n".join(calls))
        print(f"{len(calls)} calls, {changes_of_file(calls)} changes of file, {'idle' if idle else 'leased'} before\n")


if __name__ == "__main__":
    main()
