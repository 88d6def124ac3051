"""Artifacts that a function makes: the manifest names a builder instead of a path.

The builder runs in a child of its environment, with limits, and leaves files in a fresh folder, which then takes its
place by one rename: a folder that is there is complete. Builders of one folder wait for each other, also across
processes, so that the work is done once. Not covered: rebuilding when the builder's code changes; remove the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError, ConversionError
from trims.formats.base import check_relative
from trims.formats.conversion.child_process import LimitedChild
from trims.image.descriptors import explain_descriptors, lacks_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trims.formats.base import Limits

#: Record beside the artifact's files: which of them is the main one, and what made them.
RECORD = "trims-build.json"
_LOOK_AGAIN_S = 0.05


def build_artifact(
    call: str,
    args: Mapping[str, Any],
    target_dir: Path,
    *,
    python: Path | None,
    limits: Limits,
    extra_paths: Sequence[Path] = (),
) -> Path:
    """Have a builder make an artifact, unless it is there already.

    Args:
        call: "package.module:function"; called as `function(out_dir: Path, **args)`. It leaves the files in `out_dir`
            and returns the main one's name, or None if there is only one.
        target_dir: Where the files will lie. Its parent is made if need be.
        python: Interpreter to run it with; None for this one.
        limits: Limits of the child; the time includes waiting for another builder of the same folder.
        extra_paths: Folders put in front of the builder's `sys.path`.

    Returns:
        The main file, in `target_dir`.

    Raises:
        ConversionError: The builder raised, died or broke a limit.
        NotSupportedError: The builder cannot be imported in its environment.
        ArtifactError: The builder left no files, or none of the name it returned.
        CapacityError: This process has no descriptor left to start it with.
    """
    order = _Order(call, args, python, limits, extra_paths)
    if not target_dir.exists():
        try:
            _build_once(order, target_dir)
        except OSError as error:
            raise explain_descriptors(error) from error
    return _main_file(target_dir)


@dataclass(frozen=True, slots=True)
class _Order:
    """Order to a builder's child: function, arguments, interpreter, limits and folders."""

    call: str
    args: Mapping[str, Any]
    python: Path | None
    limits: Limits
    paths: Sequence[Path]


def _build_once(order: _Order, target_dir: Path) -> None:
    target_dir.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target_dir, order.limits.time_s):
        if not target_dir.exists():
            _build(order, target_dir)


def _main_file(built_dir: Path) -> Path:
    """Return the main file, as the folder's record says.

    Raises ArtifactError without one: no builder made this folder.
    """
    try:
        return built_dir / str(json.loads((built_dir / RECORD).read_text())["main"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and lacks_descriptors(error):
            raise explain_descriptors(error) from error
        raise ArtifactError(
            f"{built_dir} was not made by a builder of trims, or is damaged ({error}); remove it to have it made again"
        ) from error


@contextlib.contextmanager
def _alone(target_dir: Path, time_s: float) -> Iterator[None]:
    """Hold the folder's lock: the file stays, as removing it would let two hold it."""
    deadline = time.monotonic() + time_s
    with (target_dir.parent / f".{target_dir.name}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConversionError(f"{target_dir}: another builder is still at it after {time_s:g} s") from None
                time.sleep(_LOOK_AGAIN_S)
        yield


def _build(order: _Order, target_dir: Path) -> None:
    prefix = f".{target_dir.name}.building-"
    for left in target_dir.parent.glob(f"{prefix}*"):  # of a builder that was killed: we hold the lock
        shutil.rmtree(left)
    out_dir = Path(tempfile.mkdtemp(prefix=prefix, dir=target_dir.parent))
    try:
        record = {"main": _run(order, out_dir), "call": order.call, "args": dict(order.args)}
        (out_dir / RECORD).write_text(json.dumps(record, indent=1))
        _make_durable(out_dir)
        out_dir.rename(target_dir)
    except OSError as error:
        if lacks_descriptors(error):
            raise
        raise ConversionError(f"{order.call}: its files cannot be put at {target_dir}: {error}") from error
    finally:
        shutil.rmtree(out_dir, ignore_errors=True)


def _run(order: _Order, out_dir: Path) -> str:
    """Run the builder; returns the main file's name."""
    package = order.call.partition(":")[0].partition(".")[0]
    child = LimitedChild(order.call, python=order.python, limits=order.limits, extra_paths=order.paths, lent=[package])
    with contextlib.closing(child):
        request = {"do": "build", "call": order.call, "args": dict(order.args), "out_dir": str(out_dir)}
        main = child.request(request).get("built")
    return _main_name(order.call, out_dir, None if main is None else str(main))


def _main_name(call: str, out_dir: Path, main: str | None) -> str:
    names = sorted(str(path.relative_to(out_dir)) for path in out_dir.rglob("*") if path.is_file())
    if main is None:
        if len(names) != 1:
            raise ArtifactError(
                f"the builder {call} left {len(names)} files and did not say which is the main one: {names[:10]}"
            )
        return names[0]
    check_relative(Path(call), main)
    if main not in names:
        raise ArtifactError(f"the builder {call} returned {main!r}, but left {names[:10]}")
    return main


def _make_durable(folder: Path) -> None:
    """Write the files' bytes to the disk before the name: after a power cut, the name must not stand alone."""
    for path in (*folder.rglob("*"), folder):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
