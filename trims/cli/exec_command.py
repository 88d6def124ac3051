"""`trims exec`: start an unmodified program from a template, and look after the templates.

The usual form is read here by hand, in front of all that the command line imports; what it does not know is left to
`register`, which has the help and the errors.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

#: Seconds for which a template is kept without being used, and that it must save each start.
_KEEP_ALIVE_S, _LEAST_SAVING_S = 600.0, 0.01
#: Options without a value, and what they set.
_FLAGS = {"--why": {"why": True}, "--loaders": {"loaders": True}, "--no-loaders": {"loaders": False}}
#: Options with a number of seconds, and the names of what they set.
_SECONDS = {"--keep-alive": "keep_alive_s", "--least-saving": "least_saving_s"}


def launch(words: Sequence[str]) -> int | None:
    """Start the program of a command line; never returns then.

    Args:
        words: Words behind `trims exec`.

    Returns:
        An exit status if the program cannot be started; None if these are no words of the usual form.
    """
    given: dict[str, Any] = {"ignored": []}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        index += 1
        if word == "--":
            break
        if word in _FLAGS:
            given.update(_FLAGS[word])
        elif word in (*_SECONDS, "--ignore", "--runtime-dir") and index < len(words):
            if not _take(given, word, words[index]):
                return None
            index += 1
        else:
            return None
    if index == len(words):
        return None
    return _start(words[index:], given)


def _start(words: Sequence[str], how: dict[str, Any]) -> int:
    """Start a program. Return an exit status if it cannot be started, as a shell's."""
    from trims.programs.launch import Launch

    try:
        Launch(words, **how).run()
    except OSError as error:
        sys.stderr.write(f"trims exec: {words[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
    return 0


def _take(given: dict[str, Any], word: str, value: str) -> bool:
    """Take the value of an option in. Return whether it can be one."""
    if word == "--ignore":
        given["ignored"].append(value)
    elif word == "--runtime-dir":
        given["runtime_dir"] = value
    else:
        try:
            given[_SECONDS[word]] = _seconds(value)
        except ValueError:
            return False
    return True


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    import argparse

    text = "run an unmodified program, from the second time on from a template with its imports"
    parser = commands.add_parser("exec", help=text, description=text, usage="trims exec [options] -- COMMAND ...")
    parser.add_argument("--why", action="store_true", help="print whether a template was used, or why not")
    text = "whether frameworks load through the store (docs/transparent.md; default: as the daemon is set)"
    parser.add_argument("--loaders", action=argparse.BooleanOptionalAction, help=text)
    text = f"seconds for which a template that this run makes is kept unused (default: {_KEEP_ALIVE_S:g})"
    parser.add_argument("--keep-alive", type=_seconds, default=_KEEP_ALIVE_S, metavar="SECONDS", help=text)
    text = (
        f"seconds that the imports must take; a program whose imports take less starts as ever, without a template "
        f"(default: {_LEAST_SAVING_S:g})"
    )
    parser.add_argument("--least-saving", type=_seconds, default=_LEAST_SAVING_S, metavar="SECONDS", help=text)
    text = "environment variable that no import of the program reads, so that its value does not tell templates apart"
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME", help=text)
    text = "end the template with this name or key, or all, so that the next run is observed again"
    parser.add_argument("--forget", nargs="?", const="", metavar="TEMPLATE", help=text)
    text = "write the specification of a Jupyter kernel that starts by `trims exec`; COMMAND is its Python (python3)"
    parser.add_argument("--kernel", metavar="NAME", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON (with --forget and --kernel)")
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="a program and its arguments")
    parser.set_defaults(run=_run)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError
    return seconds


def _run(options: argparse.Namespace) -> int:
    from trims.core.errors import CallerError

    if options.forget is not None:
        if options.words:
            raise CallerError("--forget ends templates and runs nothing; leave the command away")
        return _forget(options)
    if options.kernel is not None:
        return _write_kernel(options)
    if not options.words:
        raise CallerError("no command is given: trims exec -- python app.py")
    how = {
        "runtime_dir": options.runtime_dir or "", "why": options.why, "ignored": options.ignore,
        "loaders": options.loaders,
    }  # fmt: skip
    seconds = {name: getattr(options, word[2:].replace("-", "_")) for word, name in _SECONDS.items()}
    return _start(options.words, {**how, **seconds})


def _forget(options: argparse.Namespace) -> int:
    from trims.cli.output import say_done

    ended = _ask(options.runtime_dir, {"op": "forget", **({"template": options.forget} if options.forget else {})})[
        "ended"
    ]
    say_done(options, f"{len(ended)} template{'' if len(ended) == 1 else 's'} ended", ended=ended)
    return 0


def _is_ours(text: str, command: Sequence[str]) -> bool:
    """Return whether the specification of a kernel starts it by this command."""
    import json

    try:
        spec = json.loads(text)
    except ValueError:
        return False
    return isinstance(spec, dict) and spec.get("argv", [])[:2] == command[:2]


#: Variables that a notebook server sets for each kernel: the process and the notebook it belongs to.
_OF_KERNELS = ("JPY_PARENT_PID", "JPY_SESSION_NAME")


def _write_kernel(options: argparse.Namespace) -> int:
    """Write the specification of a Jupyter kernel. Raises CallerError if another kernel has the name."""
    import json
    import os
    import re
    import shutil
    from pathlib import Path

    from trims.cli.output import say_done
    from trims.core.errors import CallerError

    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", options.kernel):
        raise CallerError(f"{options.kernel!r} is no name of a kernel: letters, digits, '_', and then '.' and '-' too")
    python = shutil.which((options.words or ["python3"])[0])
    if python is None or len(options.words) > 1:
        raise CallerError(f"--kernel takes one Python, and {' '.join(options.words) or 'python3'!r} is none")
    ours = [os.path.abspath(sys.argv[0]), "exec", *(word for name in _OF_KERNELS for word in ("--ignore", name))]
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    folder = Path(os.environ.get("JUPYTER_DATA_DIR") or os.path.join(data, "jupyter")) / "kernels" / options.kernel
    file = folder / "kernel.json"
    if file.exists() and not _is_ours(file.read_text(), ours):
        raise CallerError(f"{file} is the specification of another kernel; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    command = [*ours, "--", os.path.abspath(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": f"{options.kernel} (trims exec)", "language": "python"}
    file.write_text(json.dumps({**spec, "metadata": {"debugger": True}}, indent=1) + "\n")
    say_done(options, f"wrote {file}", file=str(file))
    return 0


_COLUMNS = ("program", "key", "state", "process>", "modules>", "memory>", "starts>", "idle>", "left out")


def list_templates(runtime_dir: str = "") -> list[dict[str, Any]]:
    """Return the templates of this user, as the daemon describes them. Raises TrimsError."""
    found: list[dict[str, Any]] = _ask(runtime_dir, {"op": "templates"})["templates"]
    return found


def say_templates(options: argparse.Namespace) -> None:
    """Print the templates of this user: `trims ps --templates`."""
    from trims.cli.output import say_json, table
    from trims.core.units import format_bytes

    found = list_templates(options.runtime_dir or "")
    if options.json:
        say_json(found)
        return
    rows = [
        (
            each["name"], each["key"][:8], each["state"], str(each["pid"]), str(each["modules"]),
            format_bytes(each["nbytes"]), str(each["starts"]), f"{each['idle_s']:.0f} s",
            ", ".join(f"{name} ({why})" for name, why in each["left_out"].items()),
        )
        for each in found
    ]  # fmt: skip
    table(_COLUMNS, rows, empty="there are no templates; `trims exec -- COMMAND` makes one")


def _ask(runtime_dir: str | None, message: dict[str, Any]) -> dict[str, Any]:
    import os

    from trims.core.errors import DaemonAwayError
    from trims.programs.door import Door
    from trims.wire.address import ATTACH_SOCKET, default_runtime_dir

    path = os.path.join(runtime_dir or default_runtime_dir(), ATTACH_SOCKET)
    try:
        door = Door.open(path)
    except OSError as error:
        raise DaemonAwayError(f"no daemon answers at {path}: {error.strerror}; start one with `trims serve`") from error
    try:
        return door.ask(message)
    finally:
        door.close()
