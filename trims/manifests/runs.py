"""Frameworks that run models, as their manifests and formats say it; and why no request of a model can be answered."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trims.core.errors import NotSupportedError
from trims.manifests.tasks import EMBEDDING, TASKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trims.manifests.manifest import Manifest
    from trims.manifests.predictor import PredictorSettings

#: Format -> the framework that runs its models. Of the others, one has to know more than the file says.
_OF_FORMAT = {"onnx": "onnxruntime", "mxnet": "mxnet", "transformers": "transformers"}
#: Frameworks whose predictors read no options.
_WITHOUT_OPTIONS = ("torch", "onnxruntime", "mxnet")
#: Formats of files with tensors alone.
_TENSORS = ("torch", "safetensors")
#: Part that prepares inputs -> pattern of its files, and the usual ones.
_PREPARE = {
    "tokenizer": re.compile(r".*(token|vocab|merges|bpe|tekken).*|.+\.(model|spm|codes)\Z"),
    "image_processor": re.compile(r"(pre)?processor_config\.json\Z"),
    "feature_extractor": re.compile(r"(pre)?processor_config\.json\Z"),
}
_NAMES = {
    "tokenizer": "tokenizer.json, tokenizer_config.json", "image_processor": "preprocessor_config.json",
    "feature_extractor": "preprocessor_config.json",
}  # fmt: skip


def framework_in(manifest: Manifest, format_name: str) -> str:
    """Return the framework that runs a model; empty if nothing says it.

    Args:
        format_name: Format of the artifact, as it was found; empty until something looked.
    """
    if manifest.framework is not None:
        return manifest.framework.name
    if "module" in manifest.artifact.options:
        return "torch"
    return _OF_FORMAT.get(manifest.artifact.format or format_name, "")


def nothing_runs(name: str) -> str:
    """Return why no request of a model is answered whose manifest names no framework, and what to do."""
    return (
        f"nothing says what runs {name!r}: its manifest needs `framework: {{name: torch}}` and `options.module` (or "
        "the framework onnxruntime or mxnet), or `predictor:` with `call: package.module:Class`, "
        "`function: package.module:function`, `handler: FILE.py:NAME` or the `name` of an installed predictor"
    )


def why_not_run(manifest: Manifest, format_name: str, files: Iterable[str] = ()) -> str:
    """Return why no request of a model can be answered, and what to do; empty if that is not known.

    Such a model is no mistake: sessions open its tensors. `trims add` prints the reason, before a first request fails.

    Args:
        format_name: Format of the artifact, as it was found; empty until something looked.
        files: Files of the artifact, as they were found; none until something looked.
    """
    source = manifest.artifact
    found = source.format or format_name
    if manifest.predictor.has_own_code or source.model is not None:
        return ""
    if not found:  # nothing has looked into the artifact yet
        return ""
    framework = framework_in(manifest, format_name)
    if framework in ("", "numpy"):
        return f"{nothing_runs(manifest.name)}. Until then its tensors can be opened, and its requests fail"
    without_module = "module" not in source.options and not source.allow_pickle and source.uri is None
    if framework == "torch" and without_module and found in _TENSORS:
        return (
            f"torch runs modules, and {manifest.name!r} has tensors alone: its manifest needs "
            "`options: {module: package.module:function}`, which returns the module. Until then its tensors can be "
            "opened, and its requests fail"
        )
    return _lacks(manifest, files) if framework == "transformers" and found == framework else ""


def options_for_frameworks(settings: PredictorSettings) -> list[str]:
    """Return the options that only a framework's predictor could read; none beside one's own, which may read any."""
    if settings.name or settings.function or settings.call:
        return []
    return [each for each in settings.options if not (settings.handler and each == "as")]


def check_unread_options(name: str, settings: PredictorSettings, framework: str) -> None:
    """Raise NotSupportedError for options that nothing would read; a predictor of one's own may read any.

    Args:
        framework: The one that runs it; empty if nothing says it.
    """
    unknown = options_for_frameworks(settings)
    if unknown and (settings.handler or framework in _WITHOUT_OPTIONS):
        what = "a handler" if settings.handler else f"the predictor for {framework}"
        raise NotSupportedError(
            f"predictor.options of {name!r} has {', '.join(unknown)}, which {what} does not know; leave it out"
        )


def task_by_signs(raw: Mapping[str, Any]) -> str:
    """Return the task in the manifest of a folder whose configuration names no architecture; empty for another model.

    Embeddings are left out, because their modules say the task.
    """
    task, about = raw["artifact"].get("options", {}).get("task", ""), raw.get("attributes", {})
    unnamed = about.get("architecture") == "" and about.get("model_type")
    return str(task) if unnamed and task != EMBEDDING else ""


def _lacks(manifest: Manifest, files: Iterable[str]) -> str:
    """Return what the folder of a Hugging Face model lacks to prepare inputs for its task; empty for nothing."""
    names = [each.rpartition("/")[2] for each in files]
    task = TASKS.get(str(manifest.artifact.options.get("task")))
    for part in task.reads if task is not None and names else ():
        if not any(map(_PREPARE[part].match, names)):
            return (
                f"{manifest.name!r} has no {part.replace('_', ' ')} beside its weights ({_NAMES[part]}): put the files "
                "there and add the folder again (--replace). Until then its module can be opened, and its requests fail"
            )
    return ""
