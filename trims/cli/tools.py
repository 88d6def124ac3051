"""Commands that need no daemon: convert, doctor."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trims.cli.output import say, say_json, table
from trims.core.errors import CallerError
from trims.core.units import format_bytes

if TYPE_CHECKING:
    import argparse


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    text = "convert a registered model or an artifact to an image file, without a daemon"
    convert = commands.add_parser("convert", help=text, description=text)
    convert.add_argument("source", help="a registered model, a manifest, or an artifact")
    target = convert.add_mutually_exclusive_group(required=True)
    target.add_argument("-o", "--output", type=Path, help="file to write; must not exist")
    target.add_argument("--to-fd", type=int, help="descriptor to write to, inherited from the caller")
    convert.set_defaults(run=_convert)
    text = "say what is wrong with this machine's set-up, and what to do about it"
    doctor = commands.add_parser("doctor", help=text, description=text)
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)


def _convert(options: argparse.Namespace) -> None:
    if options.to_fd is not None:
        _convert_to(options, options.to_fd)
        return
    try:
        fd = os.open(options.output, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise CallerError(f"{options.output} exists; remove it or choose another name") from None
    try:
        nbytes = _convert_to(options, fd)
    except BaseException:
        options.output.unlink()
        raise
    finally:
        os.close(fd)
    say(f"{options.output}: image of {format_bytes(nbytes)}")


def _convert_to(options: argparse.Namespace, fd: int) -> int:
    """Plan, size the file, write. Returns the image's length."""
    from trims.cli.model_commands import manifest_for
    from trims.daemon.config import build_config
    from trims.formats.base import Limits
    from trims.formats.conversion import start_conversion
    from trims.registry.base import read_manifest
    from trims.registry.sqlite import SqliteRegistry
    from trims.store.catalog import Catalog
    from trims.store.resolve import Resolver

    config = build_config({"runtime_dir": options.runtime_dir})
    limits = Limits(memory_bytes=config.converter_memory_bytes, time_s=config.converter_time_s)
    source = Path(options.source)
    with tempfile.TemporaryDirectory(prefix="trims-convert-") as scratch:
        if source.is_file():
            registry = SqliteRegistry(Path(scratch) / "registry.db")
            is_manifest = source.suffix in (".yaml", ".yml")
            raw, origin = read_manifest(source) if is_manifest else (manifest_for(source, "artifact"), "")
            name = registry.put(raw, origin).name
        else:
            registry, name = SqliteRegistry(config.state_dir / "registry.db"), options.source
        catalog = Catalog(Path(scratch) / "catalog.db")
        try:
            resolver = Resolver(registry, catalog, config.environments, config.state_dir / "artifacts", limits)
            resolved = resolver.resolve(name)
            with start_conversion(resolved.artifact, python=resolved.python, limits=limits) as conversion:
                nbytes = conversion.plan()
                os.posix_fallocate(fd, 0, nbytes)
                conversion.write(fd)
            return nbytes
        finally:
            catalog.close()
            registry.close()


def _doctor(options: argparse.Namespace) -> int:
    from trims.cli.doctor import examine

    findings = examine(options.runtime_dir)
    if options.json:
        say_json([finding.as_json() for finding in findings])
    else:
        rows = [[finding.verdict, finding.what, finding.advice] for finding in findings]
        table("", ("", "what", "remedy"), rows, empty="nothing was examined")
    return 1 if any(finding.verdict == "bad" for finding in findings) else 0
