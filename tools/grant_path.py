"""How far one warm grant travels through the code: calls, and changes of file, inside `trims/core` and `trims/store`.

    python tools/grant_path.py

A daemon's store in this process grants a model that is resident. Each Python function that is entered in those two
packages counts as a call, comprehensions and properties included; a change of file is a call from another file than
the last one was in.
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
from trims.store.asks import Pending

if TYPE_CHECKING:
    from types import FrameType

_WATCHED = tuple(str(Path(trims.__file__).parent / name) for name in ("core", "store"))
_WAIT_S = 60.0


def path_of_a_warm_grant() -> list[str]:
    """`file:function` of each call, in order."""
    calls: list[str] = []

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
            for looking in (False, True):  # the first one is warm already, the second one is looked at
                pending = Pending()
                sys.setprofile(look if looking else None)
                daemon.store.open(name, pending.set, session=session)
                sys.setprofile(None)
                pending.result(_WAIT_S)
            daemon.store.end_session(session)  # a purge waits for leases
        finally:
            daemon.ask_to_end(purge=True)
            daemon.stop()
    return calls


def main() -> None:
    """Print the way, and its two numbers."""
    calls = path_of_a_warm_grant()
    files = [call.partition(":")[0] for call in calls]
    changes = sum(one != other for one, other in itertools.pairwise(files))
    print("\n".join(calls))
    print(f"{len(calls)} calls, {changes} changes of file, {len(set(files))} files")


if __name__ == "__main__":
    main()
