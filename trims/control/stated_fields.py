"""Fields of a manifest that are stated beside an artifact or a function, by flags of `trims add` or in `Admin.add`.

They are put into the manifest that is made of the artifact, and checked as all manifests are. A manifest of one's own
has its fields in itself: they are refused beside it. Errors name fields, and `by_flag` has `trims add` name its flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, ManifestError
from trims.manifests.manifest import parse_manifest
from trims.manifests.runs import options_for_frameworks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.manifests.manifest import Manifest

#: Fields -> flags of `trims add`; a field whose own fields are of any name has one flag for all.
FLAGS: Mapping[tuple[str, ...], str] = {
    ("version",): "--version",
    ("residency", "place"): "--place",
    ("predictor", "instances"): "--instances",
    ("predictor", "threads"): "--threads",
    ("predictor", "hot"): "--hot",
    ("predictor", "deadline_s"): "--deadline",
    ("predictor", "keep_alive_s"): "--keep-alive",
    ("predictor", "max_batch_size"): "--max-batch-size",
    ("predictor", "batch_delay_s"): "--batch-delay",
    ("predictor", "options", "truncation"): "--truncate",
    ("predictor", "options"): "--option",
    ("artifact", "options"): "--artifact-option",
}
#: Other arguments of `Admin.add` that errors name -> flags of `trims add`.
_ARGUMENTS: Mapping[tuple[str, ...], str] = {
    (name,): f"--{name.replace('_', '-')}" for name in ("name", "state_key", "task", "trust_remote_code", "prove")
}


def check_fields(fields: object) -> None:
    """Raise CallerError for what is no mapping of fields."""
    if not isinstance(fields, Mapping):
        raise CallerError(f'fields is {fields!r:.80}; state a mapping, such as {{"version": "2"}}')


def refuse_fields(fields: Mapping[str, Any], what: str) -> None:
    """Raise CallerError for fields beside a manifest."""
    for path, _ in _leaves(fields):
        raise CallerError(
            f"{'.'.join(path)} is for artifacts and functions; {what} is a manifest: write {'.'.join(path)} there"
        )


def artifact_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what fields state of the options for the artifact's converter."""
    artifact = fields.get("artifact")
    options = artifact.get("options") if isinstance(artifact, Mapping) else None
    return dict(options) if isinstance(options, Mapping) else {}


def with_fields(raw: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with further fields.

    Raises:
        CallerError: The manifest says something else in one of them, or its predictor knows no options.
        ManifestError: A field is none, or has a value that it cannot have.
    """
    if not fields:
        return dict(raw)
    made = _merged(raw, fields, ())
    _check_known(parse_manifest(made))
    return made


def _check_known(manifest: Manifest) -> None:
    """Raise CallerError for an option of a predictor that knows none, as far as the artifact can be seen."""
    settings, framework = manifest.predictor, manifest.framework
    if manifest.artifact.uri is not None:
        return
    if framework is not None and framework.name == "transformers" and not settings.handler:
        return
    for name in options_for_frameworks(settings):
        raise CallerError(
            f"predictor.options.{name} is for folders of Hugging Face models, and {manifest.name} is none"
        )


def _merged(raw: Mapping[str, Any], fields: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(fields, Mapping):
        raise CallerError(f"{'.'.join(path)} is {fields!r:.80}; state a mapping of fields")
    made = dict(raw)
    for name, value in fields.items():
        there, here = made.get(name), (*path, str(name))
        if isinstance(there, Mapping):
            made[name] = _merged(there, value, here)
        elif there is not None and there != value:
            raise CallerError(f"{'.'.join(here)} is {there!r:.80} already, by what is added")
        else:
            made[name] = value
    return made


def by_flag(error: CallerError, fields: Mapping[str, Any]) -> CallerError:
    """Return an error of a registration with the flag that states the field which it names; else the error itself."""
    text = str(error)
    if type(error) is CallerError:
        for path in (*(path for path, _ in _leaves(fields)), *_ARGUMENTS):
            begins = f"{'.'.join(path)} is "
            if text.startswith(begins):
                return CallerError(f"{_flag(path)} is {text.removeprefix(begins)}")
    if isinstance(error, ManifestError):
        for path, _ in _leaves(fields):
            named = [f"{'.'.join(path)}: ", *(f"{name!r}" for name in reversed(path))]
            if any(each in text for each in named):
                return ManifestError(f"{_flag(path)}: {text}")
    return error


def _leaves(fields: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the fields that have values, with what lies around them."""
    for name, value in fields.items():
        here = (*path, str(name))
        if isinstance(value, Mapping) and path[-1:] != ("options",):
            yield from _leaves(value, here)
        else:
            yield here, value


def _flag(path: tuple[str, ...]) -> str:
    """Return the flag that states a field, also one option, or an argument; without a flag, the field itself."""
    if flag := FLAGS.get(path) or _ARGUMENTS.get(path):
        return flag
    return f"{FLAGS[path[:-1]]} {path[-1]}" if path[:-1] in FLAGS else ".".join(path)
