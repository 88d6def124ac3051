"""Checks of manifests without a daemon: fields, files, formats, frameworks, and names that are there twice."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.control.functions import check_handler
from trims.control.manifest_lines import Lines, Problem, yaml_problem
from trims.core.errors import ArtifactNotFoundError, ManifestError, NotSupportedError, TrimsError
from trims.formats.conversion.conversion import converter, detect
from trims.formats.settings import check_settings
from trims.formats.transformers.converter import TransformersConverter
from trims.formats.transformers.folder import main_in
from trims.manifests.device_support import why_not_on_device
from trims.manifests.manifest import Manifest, parse_manifest
from trims.manifests.runs import framework_in
from trims.manifests.tasks import check_task
from trims.registry.base import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trims.formats.base import Converter
    from trims.formats.conversion.interpreter_selection import InterpreterSelection

#: Problems of one file's fields that are looked for: each is found without those before it.
_MOST_PROBLEMS = 32
#: Fields in place of those without which nothing is a manifest.
_IN_PLACE: Mapping[str, Any] = {"name": "m", "artifact": {"path": "/m"}}


class Checked(NamedTuple):
    """One file.

    Attributes:
        name: Name of the model; empty if the file does not say it.
        problems: Problems in the order of lines; empty for a manifest that is right.
    """

    file: Path
    name: str
    problems: tuple[Problem, ...]


def check_manifests(files: Sequence[Path], picker: InterpreterSelection) -> list[Checked]:
    """Check each file, and that no two have one name.

    Args:
        picker: Says which frameworks there are.
    """
    found = [_check(file, picker) for file in files]
    first: dict[str, Path] = {}
    for number, each in enumerate(found):
        other = first.setdefault(each.name, each.file)
        if each.name and other is not each.file:
            message = f"{each.name!r} is the name in {other}, too; models have names of their own"
            line = Lines(_text(each.file)).of("name")
            found[number] = each._replace(problems=(*each.problems, Problem(line, "name", message)))
    return found


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _check(file: Path, picker: InterpreterSelection) -> Checked:
    try:
        text = _text(file)
    except OSError as error:
        return Checked(file, "", (Problem(1, "", f"it cannot be read: {error.strerror}"),))
    except UnicodeDecodeError as error:
        return Checked(file, "", (Problem(1, "", f"it is no text in UTF-8: {error}"),))
    try:
        raw = parse_yaml(text)
    except ManifestError as error:
        return Checked(file, "", (yaml_problem(error),))
    lines, origin = Lines(text), str(file.resolve().parent)
    problems, manifest = _fields(raw, origin, lines)
    if manifest is not None:
        wrong = {_outer(each) for each in problems}
        problems += [
            Problem(lines.of(field), field, message)
            for field, message in _beyond(manifest, picker)
            if _first(field) not in wrong
        ]
    name = raw.get("name")
    return Checked(file, name if isinstance(name, str) else "", tuple(sorted(problems)))


def _fields(raw: Mapping[str, Any], origin: str, lines: Lines) -> tuple[list[Problem], Manifest | None]:
    """Return what is wrong with the fields, and the manifest without those; None if nothing is left of it.

    A field that is wrong hides no other.
    """
    problems: list[Problem] = []
    left = dict(raw)
    for _ in range(_MOST_PROBLEMS):
        try:
            return problems, parse_manifest(left, origin)
        except ManifestError as error:
            problem = lines.problem(str(error).partition(": ")[2])
            problems.append(problem)
            if not _without(left, _outer(problem)):
                break
    return problems, None


def _first(field: str) -> str:
    """Return the field of the manifest itself that a field lies in."""
    return field.partition(".")[0].partition("[")[0]


def _outer(problem: Problem) -> str:
    """Return the field of the manifest itself that a problem is of: one that is wrong, missing or unknown."""
    return _first(problem.field) or problem.message.partition("'")[2].partition("'")[0]


def _without(raw: dict[str, Any], field: str) -> bool:
    """Take a field out of a mapping; return False if that changes nothing."""
    if field in _IN_PLACE:
        same = raw.get(field) == _IN_PLACE[field]
        raw[field] = _IN_PLACE[field]
        return not same
    if field not in raw:
        return False
    del raw[field]
    return True


def _beyond(manifest: Manifest, picker: InterpreterSelection) -> Iterator[tuple[str, str]]:
    """Yield fields whose values no daemon on this machine could follow, and why."""
    yield from _artifact(manifest)
    yield from _framework(manifest, picker)
    yield from _code(manifest)
    for field, file in _named_files(manifest):
        if not Path(manifest.origin, file).is_file():
            yield field, f"{Path(manifest.origin, file)} is no file; correct the path, or put it there"


def _artifact(manifest: Manifest) -> Iterator[tuple[str, str]]:
    source, main, field = manifest.artifact, None, "artifact"
    if source.path is not None:
        field, main = "artifact.path", Path(manifest.origin, source.path)
    elif source.package is not None:
        field, main = "artifact.package", _in_package(*source.package)
        if main is None:
            yield field, f"the Python package {source.package[0]!r} is not installed here; install it"
            return
    try:
        main = None if main is None else _main_file(main)
    except TrimsError as error:
        yield field, str(error)
        main = None
    chosen = None
    try:
        if source.format is not None:
            chosen = converter(source.format)
        elif main is not None:
            chosen = detect(main)
    except TrimsError as error:
        yield "artifact.format" if source.format is not None else field, str(error)
    troubles = []
    if chosen is not None and chosen.format == TransformersConverter.format:
        troubles = list(_task(source.options, main, field))
    yield from troubles or _settings(manifest, chosen, main)


def _main_file(path: Path) -> Path:
    """Return the file by which a file, or a folder with one, is opened. Raises ArtifactError, CallerError."""
    main = main_in(path) if path.is_dir() else path
    if not main.is_file():
        raise ArtifactNotFoundError(f"{main} is no file; correct the path, or put it there")
    return main


def _task(options: Mapping[str, Any], main: Path | None, field: str) -> Iterator[tuple[str, str]]:
    """Yield why a Hugging Face model has no task, or none that is served; `main` is its file, if that is here."""
    try:
        if "task" in options:
            check_task(options["task"])
        if main is not None:
            TransformersConverter().task(main, options)
    except TrimsError as error:
        yield "artifact.options.task" if "task" in options else field, str(error)


def _settings(manifest: Manifest, chosen: Converter | None, main: Path | None) -> Iterator[tuple[str, str]]:
    try:
        check_settings(manifest, chosen, main)
    except NotSupportedError as error:
        yield "predictor.max_batch_size" if "max_batch_size" in str(error) else "predictor.options", str(error)
    if why := why_not_on_device(manifest, framework_in(manifest, "" if chosen is None else chosen.format)):
        yield "residency.place", why


def _in_package(package: str, path: str) -> Path | None:
    """Return a file inside an installed package, found without importing it; None if that is not installed."""
    spec = importlib.util.find_spec(package.partition(".")[0])
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]).joinpath(*package.split(".")[1:], path)


def _framework(manifest: Manifest, picker: InterpreterSelection) -> Iterator[tuple[str, str]]:
    wanted = manifest.framework
    if wanted is None:
        return
    try:
        picker.pick(manifest.name, wanted.name, wanted.version, required=bool(wanted.version))
    except TrimsError as error:
        yield "framework.version" if wanted.version else "framework", str(error)


def _code(manifest: Manifest) -> Iterator[tuple[str, str]]:
    if not manifest.predictor.handler:
        return
    path, _, name = manifest.predictor.handler.rpartition(":")
    try:
        check_handler(Path(os.path.join(manifest.origin, path)), name)
    except TrimsError as error:
        yield "predictor.handler", str(error)


def _named_files(manifest: Manifest) -> Iterable[tuple[str, str]]:
    """Return fields that name files beside the manifest, and those files. Packages are another environment's."""
    for which in ("preprocess", "postprocess"):
        for number, step in enumerate(getattr(manifest, which)):
            for field in ("tokenizer", "labels"):
                file = step.fields.get(field)
                if isinstance(file, dict) and "path" in file:
                    yield f"{which}[{number}].{step.kind}.{field}", str(file["path"])
    for number, tensor in enumerate(manifest.outputs):
        if tensor.labels:
            yield f"outputs[{number}].labels", tensor.labels


def as_json(checked: Checked) -> dict[str, Any]:
    """Return a file's result as `trims validate --json` prints it."""
    problems = [each._asdict() for each in checked.problems]
    return {"file": str(checked.file), "name": checked.name, "ok": not problems, "problems": problems}
