"""A program under `trims exec` is itself: it prints, sees and ends as it does alone."""

from __future__ import annotations

import re
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from looking import wait_until
from programs import FORKED, OBSERVED, Programs

if TYPE_CHECKING:
    import subprocess


UNBUFFERED = "unbuffered streams"
#: Programs whose output and status are equal three times: alone, observed, and forked.
SCRIPTS = {
    "surroundings": """
import os, sys, signal, resource
print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.warnoptions, sys._xoptions, sys.executable, sys.prefix)
names = vars(sys.modules["__main__"])
print({name: names[name] for name in names if name.startswith("__") and name not in ("__builtins__", "__loader__")})
print(type(__loader__), __loader__.path, __builtins__)
print(os.getcwd(), os.umask(0), os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0)))
print([resource.getrlimit(each) for each in range(16)])
print([str(signal.getsignal(each)) for each in sorted(signal.valid_signals())], signal.pthread_sigmask(0, []))
""",
    "standard streams": """
import sys
for each in (sys.stdin, sys.stdout, sys.stderr):
    print(each.name, each.mode, each.encoding, each.errors, each.line_buffering, each.write_through, each.isatty(),
          each.fileno(), each.newlines, type(each.buffer), getattr(each.buffer, 'raw', each.buffer).name,
          each.seekable(), each is getattr(sys, "__" + each.name[1:-1] + "__"))
print(repr(sys.stdin.read()))
""",
    "environment": """
import os, ctypes
print(sorted(item for item in os.environ.items() if item[0] != "_"))
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(getenv(b"GIVEN"), getenv(b"ORT_DISABLE_TELEMETRY"))
print(sorted(item for item in open("/proc/self/environ").read().split("\\0") if not item.startswith("_=")))
print([item for item in open("/proc/self/cmdline").read().split("\\0") if item], open("/proc/self/comm").read())
""",
    "modules": """
import sys, json, logging, concurrent.futures
print(sorted(sys.modules))
""",
    "modules of the start": "import sys\nprint(sorted(sys.modules))\n",
    "an exit status": "import sys; print('out'); sys.exit(7)",
    "a large exit status": "import sys; sys.exit(2 ** 70)",
    "an exit text": "import sys; sys.exit('words')",
    "an uncaught error": "import json\ndef deep(): json.loads('{')\nprint('before')\ndeep()\n",
    "a syntax error": "x = (1,\ny = 2\n",
    "an interrupt": "raise KeyboardInterrupt",
    "an end without cleaning": "import os, atexit; atexit.register(print, 'never'); os._exit(9)",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "an abort": "import os; os.abort()",
    "a hook for errors": """
import sys
sys.excepthook = lambda *what: print('hook', what[0], what[2].tb_lineno)
raise ValueError(1)
""",
    "things to do at the end": """
import atexit, weakref, threading, tempfile, sys, os
class Thing:
    def __del__(self): print('deleted', flush=True)
thing, kept = Thing(), Thing()
kept.cycle = kept
weakref.finalize(kept, print, 'finalized')
atexit.register(print, 'first'); atexit.register(print, 'last')
open_file = open('written', 'w'); open_file.write('not closed')
threading.Thread(target=lambda: (threading.Event().wait(0.1), print('thread'))).start()
print('end of the program')
""",
    "output that is not flushed": "import sys; sys.stdout.write('no newline'); sys.stderr.write('error')",
    "output of C": "import ctypes; ctypes.CDLL(None).printf(b'from C')",
    "processes": """
import os, subprocess, multiprocessing, sys
def work(x): return x * x
if __name__ == '__main__':
    print(subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True, text=True))
    pid = os.fork()
    if pid == 0: print('child', flush=True); sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    for method in ('fork', 'spawn', 'forkserver'):
        with multiprocessing.get_context(method).Pool(2) as pool: print(method, pool.map(work, [1, 2, 3]))
""",
    "asyncio": """
import asyncio
async def main():
    process = await asyncio.create_subprocess_exec('echo', 'hello', stdout=asyncio.subprocess.PIPE)
    print(await process.communicate(), await asyncio.to_thread(len, 'four'))
asyncio.run(main())
""",
    "another program": "import os; print('x', flush=True); os.execv('/bin/echo', ['echo', 'executed'])",
    "threads": """
import threading, queue
q = queue.Queue()
threads = [threading.Thread(target=q.put, args=(n,)) for n in range(5)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sorted(q.get() for _ in threads), threading.main_thread() is threading.current_thread(), threading.active_count())
print(threading.main_thread().native_id == __import__("os").getpid())
""",
    "warnings": "import warnings\nwarnings.warn('look here')\nwarnings.warn('older', DeprecationWarning)\n",
    "reimported libraries": """
import ctypes, socket, signal, select, mmap, resource, subprocess, enum, typing, re, json, dataclasses, selectors
print(signal.Signals(2), isinstance(signal.SIGINT, enum.IntEnum), re.compile('x'), ctypes.Structure, typing.List[int])
print(ctypes.c_int(5), ctypes.sizeof(ctypes.POINTER(ctypes.c_int)), mmap.mmap(-1, 4096)[:1], socket.AF_INET)
""",
}
SCRIPTS[UNBUFFERED] = SCRIPTS["standard streams"]


def outcome(ended: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    """Return what a program has done, without the words of `trims exec` and what differs from run to run."""
    said = [line for line in ended.stderr.splitlines() if not line.startswith("trims exec: ")]
    return ended.returncode, re.sub(r"0x[0-9a-f]+|pid=\d+", "N", ended.stdout), "\n".join(said)


@pytest.mark.parametrize("what", SCRIPTS)
def test_a_script_does_under_exec_what_it_does_alone(programs: Programs, what: str) -> None:
    name = programs.write("script.py", SCRIPTS[what])
    given = {"input": "one\ntwo\n", "env": {"GIVEN": "value", "PYTHONUNBUFFERED": "1" if what == UNBUFFERED else ""}}
    alone = outcome(programs.alone("python", name, "an argument", **given))
    runs = []
    for way in (OBSERVED, FORKED, FORKED):
        ended = programs.run("python", name, "an argument", options=("--why",), **given)
        assert way in ended.stderr
        runs.append(outcome(ended))
        programs.await_templates()
    # Both the observed run and the forks: the first finder is ours in the former.
    assert runs == [alone] * 3


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C"}, {"LC_ALL": "C"}, {"LANG": "C.UTF-8"}])
def test_a_program_has_the_locale_of_its_caller(programs: Programs, given: dict[str, str]) -> None:
    kept = {name: value for name, value in programs.env.items() if not name.startswith(("LC_", "LANG"))}
    programs.env = {**kept, **given}
    code = (
        "import os, sys, locale\nprint([item for item in os.environ.items() if item[0].startswith(('LC_', 'LANG'))])\n"
    )
    name = programs.write(
        "script.py", code + "print(sys.flags, sys.stdout.encoding, sys.stdin.errors, open(0).encoding)\n"
    )
    alone = outcome(programs.alone("python", name))
    assert outcome(programs.learn("python", name)) == alone
    ended = programs.run("python", name, options=("--why",))
    assert FORKED in ended.stderr
    assert outcome(ended) == alone
    assert programs.run("env").stdout.count("LC_CTYPE") == len([name for name in given if name == "LC_CTYPE"])


FORMS = {
    "a module": ["python", "-m", "package.tool", "x"],
    "a package": ["python", "-m", "package", "x"],
    "code": ["python", "-c", "import sys; print(sys.argv, sys.path[0], __name__, sys.orig_argv[1:]); 1/0", "x"],
    "code with flags": ["python", "-OBuc", "import sys; print(sys.flags, __debug__, sys.stdout.write_through)"],
    "warnings as errors": ["python", "-W", "error", "-c", "import warnings; warnings.warn('x')"],
    "isolated": ["python", "-I", "package/tool.py", "x"],
    "without site": ["python", "-S", "-E", "package/tool.py", "x"],
    "a safe path": ["python", "-P", "package/tool.py", "x"],
    "development mode": ["python", "-X", "dev", "package/tool.py", "x"],
    "standard input": ["python", "-", "x"],
    "a module that is not there": ["python", "-m", "nothing_here"],
    "an error in a module": ["python", "-m", "package.broken"],
}


@pytest.mark.parametrize("what", FORMS)
def test_each_form_of_a_command_does_what_it_does_alone(programs: Programs, what: str) -> None:
    tool = "import sys\nprint(sys.argv, sys.path, __name__, __file__, __package__, __spec__ and __spec__.name)\n"
    for name, code in {
        "__init__": "",
        "__main__": tool,
        "tool": tool,
        "broken": "import json\njson.loads('')\n",
    }.items():
        programs.write(f"package/{name}.py", code)
    given = {"input": "import sys; print(sys.argv, sys.stdin.read()); [][1]\n"}
    alone = outcome(programs.alone(*FORMS[what], **given))
    programs.learn(*FORMS[what], **given)
    ended = programs.run(*FORMS[what], options=("--why",), **given)
    assert FORKED in ended.stderr
    assert outcome(ended) == alone


def test_a_script_with_a_python_in_its_first_line_is_itself(programs: Programs) -> None:
    name = programs.write(
        "tool",
        f"#!{sys.executable} -B\nimport sys\nprint(sys.argv, sys.orig_argv, sys.flags)\n"
        "print(open('/proc/self/comm').read(), sys.path[0])",
    )
    (programs.folder / name).chmod(0o755)
    programs.learn("./tool", "x")
    ended = programs.run("./tool", "x", options=("--why",))
    assert FORKED in ended.stderr
    assert outcome(ended) == outcome(programs.alone("./tool", "x"))


#: First lines of scripts, as people and installers write them.
LINES = {
    "direct": "{python}",
    "by env": "/usr/bin/env python3",
    "of an installer": "/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''",
}


@pytest.mark.parametrize("what", LINES)
def test_a_script_has_the_name_that_its_first_line_gives_it(programs: Programs, what: str) -> None:
    code = "import sys\nprint(open('/proc/self/comm').read(), sys.argv, sys.executable)\n"
    name = programs.write("tool", f"#!{LINES[what].format(python=sys.executable)}\n{code}")
    (programs.folder / name).chmod(0o755)
    env = {"PATH": f"{Path(sys.executable).parent}:{programs.env['PATH']}"}
    alone = outcome(programs.alone("./tool", env=env))
    assert outcome(programs.learn("./tool", env=env)) == alone
    ended = programs.run("./tool", options=("--why",), env=env)
    assert FORKED in ended.stderr
    assert outcome(ended) == alone


def test_what_a_process_inherits_is_the_callers(programs: Programs) -> None:
    name = programs.write(
        "script.py", SCRIPTS["surroundings"] + "print(os.read(9, 10), sorted(os.listdir('/proc/self/fd')))\n"
    )
    import os

    def prepare() -> None:
        os.umask(0o027)
        os.nice(3)
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.dup2(os.open("file", os.O_RDONLY), 9)

    programs.write("file", "content")
    programs.learn("python", name)
    how = {"preexec_fn": prepare, "close_fds": False}
    ended = programs.run("python", name, options=("--why",), **how)
    assert FORKED in ended.stderr
    assert outcome(ended) == outcome(programs.alone("python", name, **how))


#: Prints how many threads a library would compute with, which it reads when it is loaded.
THREADS = """
import numpy
from threadpoolctl import threadpool_info
print(sorted((each["internal_api"], each["num_threads"]) for each in threadpool_info()))
"""


@pytest.mark.parametrize("what", ["processors", "limits"])
def test_other_processors_or_limits_have_another_template(programs: Programs, what: str) -> None:
    import os

    def few() -> None:
        if what == "processors":
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        else:
            resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, 4 << 20))

    name = programs.write("script.py", THREADS)
    programs.learn("python", name)
    ways: dict[str, Any] = {"all": {}, "few": {"preexec_fn": few}}
    alone = {way: programs.alone("python", name, **how).stdout for way, how in ways.items()}
    assert OBSERVED in programs.way("python", name, **ways["few"])
    programs.await_templates(2)
    for way, how in ways.items():
        ended = programs.run("python", name, options=("--why",), **how)
        assert (ended.stdout, FORKED in ended.stderr) == (alone[way], True)
    assert (alone["all"] == alone["few"]) == (what == "limits" or len(os.sched_getaffinity(0)) == 1)


def test_a_walk_through_all_variables_needs_no_other_template(programs: Programs) -> None:
    name = programs.write("script.py", "import tqdm; print('program')")
    volatile = {"OLDPWD": "/", "SHLVL": "7", "TERM": "other", "TRACEPARENT": "x", "TMUX": "y", "SSH_TTY": "z"}
    programs.learn("python", name)
    assert FORKED in programs.way("python", name, env=volatile)
    assert "another PORT" in programs.way("python", name, env={"PORT": "1"})
    programs.await_templates(2)


def test_a_program_can_begin_a_session_and_the_first_run_has_no_more_files(programs: Programs) -> None:
    code = "import os; print(os.setsid() == os.getpid(), os.listdir('/proc/self/fd'))"
    name = programs.write("script.py", code)
    alone = programs.alone("python", name).stdout
    assert programs.learn("python", name).stdout == alone
    ended = programs.run("python", name, options=("--why",))
    assert (ended.stdout, FORKED in ended.stderr) == (alone, True)


def test_readline_has_the_terminal_of_the_run(programs: Programs) -> None:
    code = (
        "import ctypes, readline\n"
        "library = ctypes.CDLL(readline.__file__)\n"
        "library.rl_get_termcap.restype = ctypes.c_char_p\n"
        "print(ctypes.c_char_p.in_dll(library, 'rl_readline_name').value, library.rl_get_termcap(b'ce'))\n"
    )
    name = programs.write("script.py", code)
    for term in ("xterm", "dumb", "vt100"):
        env = {"TERM": term}
        if term == "xterm":
            programs.learn("python", name, env=env)
        ended = programs.run("python", name, options=("--why",), env=env)
        assert (ended.stdout, FORKED in ended.stderr) == (programs.alone("python", name, env=env).stdout, True)


def test_a_working_folder_that_is_gone_is_said_and_the_program_starts_as_ever(programs: Programs) -> None:
    gone = programs.folder / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; exec {' '.join(programs.command(['python', '-c', '1'], '--why'))}"
    ended = programs.alone("sh", "-c", command, cwd=gone)
    assert (ended.returncode, "no working folder" in ended.stderr) == (0, True)


def test_a_template_learns_what_later_runs_import_but_no_second_names(programs: Programs) -> None:
    name = programs.write(
        "script.py", "import sys, json\nsys.modules['json.second'] = json\nif sys.argv[1:]:\n    import wave\n"
    )
    programs.learn("python", name)
    (first,) = programs.templates()
    for _ in range(2):
        assert FORKED in programs.way("python", name)
    (still,) = programs.templates()
    assert (still["pid"], still["modules"]) == (first["pid"], first["modules"])
    assert FORKED in programs.way("python", name, "more")
    wait_until(lambda: programs.templates()[0]["modules"] > first["modules"], "a template with more modules")
    assert FORKED in programs.way("python", name, "more")
