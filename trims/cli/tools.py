"""Commands that need no daemon: convert, doctor, completion."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from trims.cli.completion import FILES, HOW, SHELLS, completed, write_script
from trims.cli.output import say, say_done, say_json, terminal_width
from trims.core.errors import CallerError
from trims.core.units import format_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from trims.cli.finding import Finding


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    text = "convert a registered model or an artifact to an image file, without a daemon"
    convert = commands.add_parser("convert", help=text, description=text)
    completed(convert.add_argument("source", help="a registered model, a manifest, or an artifact"), FILES)
    target = convert.add_mutually_exclusive_group(required=True)
    completed(target.add_argument("-o", "--output", type=Path, help="file to write; must not exist"), FILES)
    convert.add_argument("--json", action="store_true", help="print JSON")
    target.add_argument("--to-fd", type=int, help="descriptor to write to, inherited from the caller")
    convert.set_defaults(run=_convert)
    text = "say what is wrong with this machine's set-up, and what to do about it"
    doctor = commands.add_parser("doctor", help=text, description=text)
    text = "instead, write a backup of registry, catalog and lock file to this folder, also while the daemon runs"
    completed(doctor.add_argument("--backup", metavar="DIR", help=text), FILES)
    text = "instead, say which frameworks load through the store"
    doctor.add_argument("--loaders", action="store_true", help=text)
    completed(doctor.add_argument("--python", metavar="PATH", help="of which environment, with --loaders"), FILES)
    text = "instead, say from which size on shared memory is quicker than reading"
    doctor.add_argument("--sharing", action="store_true", help=text)
    doctor.add_argument("--measure", action="store_true", help="measure again, with --sharing")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)
    text = "print a script that completes commands and options in a shell"
    completion = commands.add_parser("completion", help=text, description=f"{text}; {HOW}")
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(run=_completion)


def _completion(options: argparse.Namespace) -> None:
    write_script(options.parser, options.shell)


def _convert(options: argparse.Namespace) -> None:
    from trims.control.convert import convert

    if options.to_fd is not None:
        convert(options.source, options.to_fd)
        return
    try:
        fd = os.open(options.output, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise CallerError(f"{options.output} exists; remove it or choose another name") from None
    try:
        nbytes = convert(options.source, fd)
    except BaseException:
        options.output.unlink()
        raise
    finally:
        os.close(fd)
    text = f"{options.output}: image of {format_bytes(nbytes)}"
    say_done(options, text, output=str(options.output), nbytes=nbytes)


def _doctor(options: argparse.Namespace) -> int:
    if options.backup is not None:
        from trims.cli.doctor import back_up_state

        written = [str(path) for path in back_up_state(options.runtime_dir, options.backup)]
        say_done(options, f"written: {', '.join(written)}", files=written)
        return 0
    findings = _findings(options)
    if options.json:
        say_json([finding.as_json() for finding in findings])
    else:
        for finding in findings:
            say("\n".join(finding.lines(terminal_width())))
        say(f"\n{_summary(findings)}")
    return 1 if any(finding.verdict == "bad" for finding in findings) else 0


def _findings(options: argparse.Namespace) -> list[Finding]:
    from trims.cli.doctor import examine, examine_daemon

    if options.loaders:
        from trims.cli.doctor_loaders import examine_loaders

        return [*examine_loaders(options.python), *examine_daemon(options.runtime_dir)]
    if options.sharing:
        from trims.cli.doctor_sharing import examine_sharing

        return list(examine_sharing(options.runtime_dir, measure=options.measure))
    if options.measure:
        raise CallerError("--measure is a flag of `trims doctor --sharing`")
    if options.python is not None:
        raise CallerError("--python is the interpreter of `trims doctor --loaders`")
    return examine(options.runtime_dir)


def _summary(findings: Sequence[Finding]) -> str:
    """Return a sentence with the number of problems, and what to type next."""
    bad = sum(finding.verdict == "bad" for finding in findings)
    if bad:
        return f"{bad} {'problem' if bad == 1 else 'problems'}: the lines that begin with `bad` say what to do"
    away = any(finding.advice == "trims serve" for finding in findings)
    return f"no problems; next: `{'trims serve' if away else 'trims add MODEL'}`"
