"""The first run of a program: an ordinary one, whose imports are noted for the template of the next.

The interpreter is started with `BOOT` in memory, which loads this file and nothing else of ours. An interpreter that
templates cannot be made of executes the program as it was asked to.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Oldest Python that templates run in.
OLDEST = (3, 10)
#: Program text for any Python, in which `{plan!a}` and `{oldest!r}` are filled in.
BOOT = """
import sys
before = set(sys.modules)
plan = {plan!a}
if sys.version_info < {oldest!r} or sys.implementation.name != "cpython":
    import os
    os.execv(plan["path"], plan["argv"])
if not getattr(sys.flags, "safe_path", sys.flags.isolated):
    del sys.path[0]
import _frozen_importlib, _frozen_importlib_external
def load(name):
    spec = _frozen_importlib_external.spec_from_file_location(name, plan["folder"] + "/" + name + ".py")
    module = _frozen_importlib.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
load("observe").main(plan, load, before)
"""
#: Argument of `-c` that runs this text from a descriptor. It is short, because `ps` shows as many letters.
SHORT = "boot=open('/proc/self/fd/{boot}','rb');text=boot.read();boot.close();exec(text)"


def main(plan: dict[str, Any], load: Callable[[str], Any], before: set[str]) -> None:
    """Run the program.

    Args:
        plan: `argv`, the command line; `comm`, the name of the process; `arguments`, those from the first on that is no
            flag; `names`, the descriptor of the memory for names; `boot`, that of the text that calls this.
        load: Loads a file that lies beside this one.
        before: Names of the modules that were there before ours.
    """
    run, observed = load("main_program").run, load("observed")
    import mmap

    own = os.dup(plan["names"])  # the number that the mapping's own copy of the descriptor gets
    os.close(own)
    memory = mmap.mmap(plan["names"], observed.MEMORY_BYTES)
    os.close(own)
    os.close(plan["names"])
    os.close(plan["boot"])
    for name in sys.modules.keys() - before:
        del sys.modules[name]
    observer = observed.Observer(memory)
    sys.meta_path.insert(0, observer)
    sys.addaudithook(observer.hear)
    _show(plan["argv"], plan["comm"])
    run(plan["arguments"], plan["argv"])


def _show(argv: list[str], comm: str) -> None:
    """Write the program's name and command line over this process's own, which is longer, for `ps`."""
    with open("/proc/self/comm", "wb", buffering=0) as file:
        file.write(os.fsencode(comm)[:15])
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"\0".join(map(os.fsencode, argv)) + b"\0"
    try:
        with open("/proc/self/mem", "r+b", buffering=0) as own:
            own.seek(begin)
            own.write(text[: end - begin].ljust(end - begin, b"\0"))
    except OSError:
        pass  # the kernel forbids it: `ps` shows how the program was started
