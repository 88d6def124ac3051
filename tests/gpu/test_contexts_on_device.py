"""A client leaves the contexts of its process's threads alone: on a real device, and on the stand-in for the driver.

Clients are processes of their own: they alone make contexts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from on_device import starter
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu

HEAD = """
import gc, json, sys, threading
from cuda.bindings import driver

def call(name, *given):
    status, *found = getattr(driver, name)(*given)
    assert int(status) == 0, (name, status)
    return found[0] if found else None

def current():
    return int(call("cuCtxGetCurrent"))

def context_of_its_own():
    device = call("cuDeviceGet", 0)
    try:
        return call("cuCtxCreate", None, 0, device)
    except TypeError:  # before cuda-bindings 13
        return call("cuCtxCreate", 0, device)

call("cuInit", 0)
"""
CLIENT = """
from trims_client import connect

runtime_dir, path, which = sys.argv[1:]
mine = context_of_its_own() if which == "own" else None
before, after, elsewhere = current(), {}, []

def drop(tensors):
    tensors.clear()
    gc.collect()
    elsewhere.append(current())

with connect(runtime_dir) as session:
    weights = session.open_file(path, place="gpu")
    after["open"] = current()
    weights.on_device("w").to_host()
    after["to_host"] = current()
    weights.close()
    after["close"] = current()
    for thread in (True, False):
        with session.open_file(path, place="gpu") as weights:
            tensors = [weights.on_device("w")]
        if thread:
            dropper = threading.Thread(target=drop, args=(tensors,))
            dropper.start()
            dropper.join()
        else:
            tensors.clear()
            gc.collect()
            after["the last tensor"] = current()
if mine is not None:
    call("cuCtxDestroy", mine)
print(json.dumps({"before": before, "after": after, "elsewhere": elsewhere}))
"""
OWNER = """
from trims.memory.cuda.connect import connect

cuda = connect("driver")
uuid = cuda.devices()[0].uuid
found = {}

def use_and_leave():
    cuda.use(uuid)
    found["used"] = bool(current())
    cuda.leave()
    return current()

found["left with none"] = use_and_leave()
mine = context_of_its_own()
cuda.retain(uuid)
cuda.leave()
found["another one stays"] = current() == int(mine)
call("cuCtxDestroy", mine)
print(json.dumps(found))
"""


def run(script: str, *given: object) -> dict[str, Any]:
    """In a process of its own; what it prints last."""
    command = [sys.executable, "-c", HEAD + script, *map(str, given)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("which", ["none", "own"])
def test_a_client_leaves_each_thread_with_the_context_it_had(
    real_device: str, folder: Path, which: str, serve: Any
) -> None:
    save_file({"w": np.arange(1 << 16, dtype=np.float32)}, folder / "m.safetensors")
    daemon = starter(serve, real_device)()
    told = run(CLIENT, daemon.config.runtime_dir, folder / "m.safetensors", which)
    assert bool(told["before"]) is (which == "own")
    assert told["after"] == dict.fromkeys(("open", "to_host", "close", "the last tensor"), told["before"])
    assert told["elsewhere"] == [0]


@pytest.mark.usefixtures("real_device")
def test_a_thread_that_gives_a_context_back_is_not_left_with_one_that_ended() -> None:
    assert run(OWNER) == {"used": True, "left with none": 0, "another one stays": True}
