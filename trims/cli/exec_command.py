"""`trims exec`: start an unmodified program from a template, and look after the templates.

The usual form is read here by hand, in front of all that the command line imports; what it does not know is left to
`register`, which has the help and the errors.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

#: Seconds for which a template is kept without being used.
_KEEP_ALIVE_S = 600.0


def launch(words: Sequence[str]) -> int | None:
    """Start the program of a command line; never returns then.

    Args:
        words: Behind `trims exec`.

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
        if word == "--why":
            given["why"] = True
        elif word in ("--keep-alive", "--ignore", "--runtime-dir") and index < len(words):
            if not _take(given, word, words[index]):
                return None
            index += 1
        else:
            return None
    if index == len(words):
        return None
    from trims.programs.launch import Launch

    try:
        Launch(words[index:], **given).run()
    except OSError as error:
        sys.stderr.write(f"trims exec: {words[index]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def _take(given: dict[str, Any], word: str, value: str) -> bool:
    """Take the value of an option in. Return whether it can be one."""
    if word == "--ignore":
        given["ignored"].append(value)
    elif word == "--runtime-dir":
        given["runtime_dir"] = value
    else:
        try:
            given["keep_alive_s"] = float(value)
        except ValueError:
            return False
        return bool(0 <= given["keep_alive_s"] < float("inf"))
    return True


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "run an unmodified program, from the second time on from a template with its imports"
    parser = commands.add_parser("exec", help=text, description=text, usage="trims exec [options] -- COMMAND ...")
    parser.add_argument("--why", action="store_true", help="print whether a template was used, or why not")
    text = f"seconds for which a template that this run makes is kept unused (default: {_KEEP_ALIVE_S:g})"
    parser.add_argument("--keep-alive", type=_seconds, default=_KEEP_ALIVE_S, metavar="SECONDS", help=text)
    text = "environment variable that no import of the program reads, so that its value does not tell templates apart"
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME", help=text)
    text = "end the template with this name or key, or all, so that the next run is observed anew"
    parser.add_argument("--forget", nargs="?", const="", metavar="TEMPLATE", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON (with --forget)")
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
    if not options.words:
        raise CallerError("no command is given: trims exec -- python app.py")
    from trims.programs.launch import Launch

    Launch(
        options.words, runtime_dir=options.runtime_dir or "", why=options.why, keep_alive_s=options.keep_alive,
        ignored=options.ignore,
    ).run()  # fmt: skip


def _forget(options: argparse.Namespace) -> int:
    from trims.cli.output import say_done

    ended = _ask(options, {"op": "forget", **({"template": options.forget} if options.forget else {})})["ended"]
    say_done(options, f"{len(ended)} template{'' if len(ended) == 1 else 's'} ended", ended=ended)
    return 0


_COLUMNS = ("program", "key", "state", "process>", "modules>", "memory>", "starts>", "idle>", "left out")


def say_templates(options: argparse.Namespace) -> None:
    """Print the templates of this user: `trims ps --templates`."""
    from trims.cli.output import say_json, table
    from trims.core.units import format_bytes

    found: list[dict[str, Any]] = _ask(options, {"op": "templates"})["templates"]
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


def _ask(options: argparse.Namespace, message: dict[str, Any]) -> dict[str, Any]:
    import os

    from trims.core.errors import DaemonAwayError
    from trims.programs.door import Door
    from trims.wire.address import ATTACH_SOCKET, default_runtime_dir

    path = os.path.join(options.runtime_dir or default_runtime_dir(), ATTACH_SOCKET)
    try:
        door = Door.open(path)
    except OSError as error:
        raise DaemonAwayError(f"no daemon answers at {path}: {error.strerror}; start one with `trims serve`") from error
    try:
        return door.ask(message)
    finally:
        door.close()
