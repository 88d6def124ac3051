"""Transparent loaders in whole programs: by `trims exec`, in child processes, beside other libraries, and reported."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import wait_until
from programs import FORKED, Environment, Programs

from trims.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

_COUNT = 1 << 19
#: Sum of the array that programs load.
SUM = float(np.arange(_COUNT, dtype=np.float32).sum())
#: Program text: loads a file until it comes from shared memory.
_SHARED = """
import sys, time
def shared(path, until_s=time.monotonic() + 30):
    import numpy
    while True:
        loaded = numpy.load(path)
        if sys.modules["trims_client.transparent"].report().shared or time.monotonic() > until_s:
            return loaded
"""


@pytest.fixture
def array(programs: Programs) -> str:
    """A file of numpy's that was written long enough ago for the daemon to trust its times."""
    path = programs.folder / "a.npy"
    np.save(path, np.arange(_COUNT, dtype=np.float32))
    wait_until(lambda: time.time() - path.stat().st_ctime > 2.1, "the file rests")
    return path.name


def run(programs: Programs, code: str, *arguments: str, **how: Any) -> str:
    """Run a program alone. Return what it prints."""
    programs.write("app.py", code)
    ended = programs.alone("python", "app.py", *arguments, **how)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.strip()


# -- by trims exec ----------------------------------------------------------------------------------------------------

_APP = "import sys, numpy\nprint(float(numpy.load(sys.argv[1]).sum()), 'trims_client' in sys.modules)\n"


def shared_by_exec(programs: Programs, array: str, *options: str) -> str:
    """Run the app from its template until it loads from shared memory. Return what it writes to standard error."""
    found: list[str] = []

    def is_shared() -> bool:
        ended = programs.run("python", "app.py", array, options=options)
        assert ended.stdout == f"{SUM} True\n", ended.stderr
        found.append(ended.stderr)
        return "from shared memory" in found[-1]

    wait_until(is_shared, "the file is in shared memory")
    return found[-1]


def test_a_program_of_trims_exec_loads_through_the_store_without_an_option(programs: Programs, array: str) -> None:
    programs.write("app.py", _APP)
    programs.learn("python", "app.py", array)
    words = shared_by_exec(programs, array, "--why")
    assert FORKED in words
    assert re.search(r"^trims: numpy\.load: 1 from shared memory \(2\.0 MiB in [0-9.]+ ms\)$", words, re.MULTILINE)
    ended = programs.run("python", "app.py", array)
    assert ended.stderr == ""


def test_the_report_of_why_says_what_was_loaded_alone_and_how_long_it_took(programs: Programs) -> None:
    programs.write("app.py", "import numpy\nnumpy.load('a.npy'); numpy.load('b.npz')\n")
    np.save(programs.folder / "a.npy", np.ones(4))
    np.savez(programs.folder / "b.npz", a=np.ones(4))
    programs.learn("python", "app.py")
    words = programs.run("python", "app.py", options=("--why",)).stderr.splitlines()
    assert FORKED in words[0]
    assert [re.sub(r"[0-9.]+ ms", "X", line) for line in words[1:]] == [
        "trims: numpy.load: 2 by the framework alone: too small to pay (X)"
    ]


def test_no_loaders_leaves_one_run_alone_and_the_template_is_the_same(programs: Programs, array: str) -> None:
    programs.write("app.py", _APP)
    programs.learn("python", "app.py", array)
    assert programs.run("python", "app.py", array, options=("--no-loaders",)).stdout == f"{SUM} False\n"
    off = programs.run("python", "app.py", array, options=("--no-loaders", "--why")).stderr
    assert len(off.splitlines()) == 1
    assert programs.run("python", "app.py", array).stdout == f"{SUM} True\n"
    assert [each["starts"] for each in programs.templates()] == [3]


def test_a_daemon_set_without_loaders_leaves_programs_alone(folder: Path, serve: Callable[..., Daemon]) -> None:
    programs = Programs(folder, serve(loaders=False).config.runtime_dir)
    programs.write("app.py", "import sys, numpy\nprint('trims_client' in sys.modules)\n")
    programs.learn("python", "app.py")
    assert programs.run("python", "app.py").stdout == "False\n"
    assert programs.run("python", "app.py", options=("--loaders",)).stdout == "True\n"
    programs.end()


def test_the_variable_turns_loaders_off_under_trims_exec(programs: Programs) -> None:
    programs.write("app.py", "import sys, numpy\nprint('trims_client' in sys.modules)\n")
    off = {"TRIMS_TRANSPARENT": "0"}
    programs.learn("python", "app.py", env=off)
    assert programs.run("python", "app.py", options=("--loaders",), env=off).stdout == "False\n"


def test_a_program_with_a_module_named_trims_keeps_its_own(programs: Programs) -> None:
    programs.write("trims.py", "here = 7\n")
    programs.write("app.py", "import numpy, trims\nprint(trims.here)\n")
    assert programs.learn("python", "app.py").stdout == "7\n"
    ended = programs.run("python", "app.py", options=("--why",))
    assert (ended.stdout, FORKED in ended.stderr) == ("7\n", True)


@pytest.mark.parametrize(("parameters", "said"), [("**how", ""), ("", "the frameworks load alone: TypeError")])
def test_a_program_whose_environment_has_trims_runs_its_own_loaders(
    programs: Programs, parameters: str, said: str
) -> None:
    environment = Environment(programs.folder / "env")
    environment.install(numpy="")
    (environment.packages / "trims_client" / "transparent").mkdir(parents=True)
    for path in ("", "transparent/"):
        text = f"def install({parameters}): print('own')\n"
        (environment.packages / "trims_client" / path / "__init__.py").write_text(text)
    words = (str(environment.python), programs.write("app.py", "import numpy, sys\nprint('trims' in sys.modules)\n"))
    assert programs.learn(*words).stdout == "False\n"
    ended = programs.run(*words, options=("--why",))
    assert ended.stdout == ("own\nFalse\n" if parameters else "False\n")
    assert said in ended.stderr
    assert programs.run(*words).stderr == ""


def test_trims_ps_names_the_program_whose_loaders_hold_a_file(
    programs: Programs, array: str, daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.write(
        "app.py", f"{_SHARED}import trims.transparent\nkept = shared(sys.argv[1])\nprint(1, flush=True)\ninput()\n"
    )
    program = programs.start("python", "app.py", array, stdin=-1)
    assert program.stdout is not None
    assert program.stdout.readline() == "1\n"
    assert main(["--runtime-dir", str(daemon.config.runtime_dir), "ps"]) == 0
    assert f"loaders of app.py {program.pid}" in capsys.readouterr().out
    program.communicate("\n", timeout=30)


# -- child processes --------------------------------------------------------------------------------------------------


def test_a_fork_after_a_load_reads_the_same_and_writes_its_own(programs: Programs, array: str) -> None:
    code = """
import os, sys, trims.transparent
loaded = shared(sys.argv[1])
before = float(loaded.sum())
pid = os.fork()
if pid == 0:
    assert float(loaded.sum()) == before
    assert trims.transparent.report() == ({}, 0, {}, {}, {})
    loaded += 1
    again = shared(sys.argv[1])
    assert float(again.sum()) == before != float(loaded.sum())
    os._exit(trims.transparent.report().shared["numpy.load"] - 1)
assert os.waitpid(pid, 0)[1] == 0
assert float(loaded.sum()) == float(shared(sys.argv[1]).sum()) == before
loaded += 1
print(before)
"""
    assert run(programs, _SHARED + code, array) == str(SUM)


_POOL = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
def work(path):
    loaded = shared(path)
    loaded += 1
    return float(loaded.sum()), sorted(sys.modules["trims_client.transparent"].report().shared)
if __name__ == "__main__":
    import trims.transparent
    trims.transparent.install()
    context = multiprocessing.get_context(sys.argv[2])
    if sys.argv[3] == "pool":
        with context.Pool(1) as pool:
            print(*pool.apply(work, (sys.argv[1],)))
    else:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            print(*pool.submit(work, sys.argv[1]).result())
    trims.transparent.uninstall()
    from multiprocessing import util
    assert not hasattr(util.spawnv_passfds, "__wrapped__")
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("kind", ["pool", "executor"])
def test_processes_of_multiprocessing_load_through_the_store(
    programs: Programs, array: str, method: str, kind: str
) -> None:
    total = float((np.arange(_COUNT, dtype=np.float32) + 1).sum())
    assert run(programs, _SHARED + _POOL, array, method, kind) == f"{total} ['numpy.load']"


def test_a_process_of_another_python_gets_no_loaders(programs: Programs) -> None:
    code = """
import multiprocessing, sys, trims.transparent
def work():
    return "trims_client" in sys.modules
if __name__ == "__main__":
    multiprocessing.set_executable(sys.argv[1])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(work))
"""
    (programs.folder / "python").symlink_to(sys.executable)
    code = code.replace("import multiprocessing, sys, trims.transparent", "import multiprocessing, sys")
    code = code.replace("    multi", "    import trims.transparent\n    multi", 1)
    env = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    assert run(programs, code, str(programs.folder / "python"), env=env) == "False"
    assert run(programs, code, sys.executable, env=env) == "True"


# -- beside other libraries -------------------------------------------------------------------------------------------


def test_functions_bound_before_the_hook_are_found_and_put_back(programs: Programs) -> None:
    programs.write("library.py", "from numpy import load\nfrom numpy import load as read\nkept = [load]\n")
    code = """
import numpy, library, types, sys
from numpy import load as mine
plain = [numpy.load]
class Lazy(types.ModuleType):
    def __getattribute__(self, name): raise SystemExit(f"{name} was read")
sys.modules["lazy"], sys.modules["nothing"] = Lazy("lazy"), None
import trims.transparent
held = [numpy.load, library.load, library.read, mine]
assert len(set(held)) == 1 and held[0] is not plain[0] and library.kept == plain
theirs = library.load = lambda *given: mine(*given)
trims.transparent.uninstall()
assert [numpy.load, library.read, mine] == plain * 3 and library.load is theirs
trims.transparent.install()
assert numpy.load is library.read is mine is not plain[0]
trims.transparent.uninstall()
assert [numpy.load, library.read, mine] == plain * 3
print("right")
"""
    assert run(programs, code) == "right"


def test_names_are_looked_for_only_if_something_holds_the_original(programs: Programs) -> None:
    code = """
import trims.transparent
from trims_client.transparent import replaced
looked, holders = [], replaced._holders
replaced._holders = lambda original, *rest: looked.append(original.__name__) or holders(original, *rest)
import numpy, multiprocessing.util
assert looked == [], looked
trims.transparent.uninstall()
assert trims.transparent.install()
assert looked == [], looked
from numpy import load as mine
trims.transparent.uninstall()
trims.transparent.install()
print(looked, mine is numpy.load)
"""
    assert run(programs, code) == "['load'] False"


def test_a_library_that_patched_first_keeps_its_function(programs: Programs, array: str) -> None:
    code = (
        _SHARED
        + """
import numpy
plain = [numpy.load]
def theirs(path, *given, **named): return ("theirs", plain[0](path, *given, **named))
numpy.load = theirs
import trims.transparent
assert numpy.load is theirs and numpy.load(sys.argv[1])[0] == "theirs"
assert list(trims.transparent.report().stepped_aside) == [("numpy.load", "another library has patched it")]
trims.transparent.uninstall()
assert numpy.load is theirs
print("right")
"""
    )
    assert run(programs, code, array) == "right"


def test_a_library_that_patched_torch_first_is_called_and_its_original_shares(programs: Programs) -> None:
    torch = pytest.importorskip("torch", reason="missing framework: torch")
    torch.save({"w": torch.arange(_COUNT)}, path := programs.folder / "m.bin")
    wait_until(lambda: time.time() - path.stat().st_ctime > 2.1, "the file rests")
    programs.write("patching.py", "import torch\nbefore = torch.load\ntorch.load = lambda f: (1, before(f))\n")
    code = """
import sys, time, torch, patching
theirs, plain = torch.load, [torch.serialization.load]
import trims.transparent
assert torch.load is theirs and torch.serialization.load is patching.before is not plain[0]
until_s = time.monotonic() + 30
while not trims.transparent.report().shared and time.monotonic() < until_s:
    one, loaded = torch.load(sys.argv[1])
trims.transparent.uninstall()
assert torch.load is theirs and [torch.serialization.load, patching.before] == plain * 2
print(one, int(loaded["w"].sum()), trims.transparent.report().shared)
"""
    assert run(programs, code, "m.bin") == f"1 {_COUNT * (_COUNT - 1) // 2} {{'torch.load': 1}}"


# -- adapters of other packages ---------------------------------------------------------------------------------------


@pytest.fixture
def packages(programs: Programs) -> dict[str, str]:
    """Environment with packages that bring a framework and adapters: one works, and the others fail."""
    folder = programs.folder / "packages"
    programs.write("packages/acme_loaders-1.0.dist-info/entry_points.txt", """
[console_scripts]
load = acme:x

[trims.loaders]
acme = acme_loaders:adapt
# none = x:y
broken = nothing_there:f
wrong = acme_loaders:raises
[x]
acme = y:z
""")  # fmt: skip
    programs.write(
        "packages/acme_loaders-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme-loaders\nVersion: 1.0\n"
    )
    programs.write("packages/acme.py", "def load(path): return 'alone'\n")
    for name in ("broken", "wrong"):
        programs.write(f"packages/{name}.py", "")
    programs.write("packages/acme_loaders.py", """
from trims_client.transparent.outcomes import note_shared
from trims_client.transparent.replaced import replace
def adapt(acme):
    original = acme.load
    def load(path):
        note_shared("acme.load", 7)
        return "shared"
    return replace([(acme, "load")], original, load)
def raises(module):
    raise LookupError("no such thing")
""")  # fmt: skip
    return {"PYTHONPATH": str(folder)}


def test_an_adapter_of_another_package_is_imported_with_its_framework(
    programs: Programs, packages: dict[str, str]
) -> None:
    code = """
import sys, trims.transparent
assert not {"acme", "acme_loaders", "importlib.metadata"} & set(sys.modules)
import broken, wrong, acme
print(acme.load("x"), trims.transparent.report().shared_bytes, *trims.transparent.report().stepped_aside, sep="\\n")
trims.transparent.uninstall()
assert acme.load("x") == "alone"
"""
    missing = "ModuleNotFoundError: No module named 'nothing_there'"
    assert run(programs, code, env=packages).splitlines() == [
        "shared", "7", f"""('broken', "its adapter failed: {missing}")""",
        "('wrong', 'its adapter failed: LookupError: no such thing')",
    ]  # fmt: skip


def test_an_adapter_of_another_package_is_found_by_templates(programs: Programs, packages: dict[str, str]) -> None:
    programs.write("app.py", "import json, acme, wrong\nprint(acme.load('x'))\n")
    assert programs.learn("python", "app.py", env=packages).stdout == "alone\n"
    for _ in range(2):
        ended = programs.run("python", "app.py", env=packages, options=("--why",))
        assert ended.stdout == "shared\n"
        assert "1 by the framework alone: its adapter failed: LookupError: no such thing" in ended.stderr
    assert programs.run("python", "app.py", env=packages, options=("--no-loaders",)).stdout == "alone\n"


# -- trims doctor -----------------------------------------------------------------------------------------------------


def doctor(programs: Programs, *words: str, **how: Any) -> tuple[int, list[str]]:
    ended = programs.alone(programs.command(["x"])[0], "doctor", "--loaders", *words, **how)
    return ended.returncode, (ended.stdout or ended.stderr).splitlines()


def test_the_doctor_says_which_frameworks_load_through_the_store(programs: Programs, packages: dict[str, str]) -> None:
    status, lines = doctor(programs, "--json", env={**packages, "TRIMS_TRANSPARENT": "0"})
    found = {each["what"]: each for each in json.loads("\n".join(lines))}
    assert status == 1  # adapters that cannot be imported
    assert found[f"numpy.load: numpy {np.__version__} loads through the store"]["verdict"] == "ok"
    assert found["acme_loaders:adapt: acme of an unknown release loads through the store"]["verdict"] == "ok"
    assert found["TRIMS_TRANSPARENT is 0: all frameworks load alone"]["verdict"] == "note"
    assert any(each["verdict"] == "bad" and "nothing_there" in what for what, each in found.items())
    assert any(what.startswith("daemon ") for what in found)


def test_the_doctor_says_what_another_python_would_load_alone(programs: Programs) -> None:
    programs.write("packages/torch-1.9.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 1.9.0\n")
    env = {"PYTHONPATH": str(programs.folder / "packages"), "TRIMS_RUNTIME_DIR": str(programs.folder / "none")}
    status, lines = doctor(programs, "--python", sys.executable, env=env)
    assert status == 0
    (torch,) = [line for line in lines if "torch.load" in line]
    assert torch.startswith("note  torch.load: torch 1.9.0 loads alone: the adapter was proven with ")
    assert any("no daemon answers" in line for line in lines)
    assert any("mxnet is not installed here" in line for line in lines)


@pytest.mark.parametrize("python", ["/bin/true", "/none", ""])
def test_the_doctor_refuses_what_is_no_python(programs: Programs, python: str) -> None:
    status, lines = doctor(programs, "--python", python)
    assert status == 1
    assert len(lines) == 1
