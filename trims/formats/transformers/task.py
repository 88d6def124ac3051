"""Task of a Hugging Face folder: as the manifest states it, or as the folder's own signs say it.

The signs, the first that says something counts: modules of sentence-transformers, the architecture in `config.json`,
settings that sentence-transformers left, the names of the weights with the type of model. Standard library only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError, NotSupportedError
from trims.formats.transformers.weights import format_of, weights_of
from trims.manifests.sentence_modules import (
    STATIC,
    bound_of,
    check_files,
    check_modules,
    function_to_apply,
    is_static,
    prompt_of,
    read_modules,
    settings_in,
)
from trims.manifests.task_options import check_options
from trims.manifests.task_signs import task_of_tag, task_of_weights
from trims.manifests.tasks import EMBEDDING, TEXT_CLASSIFICATION, check_task, task_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from trims.formats.transformers.folder import ModelFolder

_README, _MOST_README_BYTES = "README.md", 64 << 10
_TAG = re.compile(rb"^pipeline_tag: *[\"']?([\w-]+)[\"']? *$", re.MULTILINE)
_TOKENIZER = re.compile(r"(tokenizer|vocab).*\.(json|txt|model)\Z|.+\.(model|spm)\Z")


def task_in(folder: ModelFolder, options: Mapping[str, Any], *, tag: str = "") -> str:
    """Return the task of a folder, of which all that it is served with is there.

    Args:
        options: `task`, and those that say how the weights are read.
        tag: `pipeline_tag` that its publisher gave it; empty for none.

    Raises:
        CallerError: There is no such task, or nothing says it.
        NotSupportedError: The task takes modules or an activation of sentence-transformers that are not served.
        ArtifactError: A file of the folder cannot be read.
    """
    lists = folder.read_lists()
    if "task" in options:
        task = check_task(options["task"])
    elif folder.embeds:
        task = EMBEDDING
    else:
        task = task_of(folder.config, str(folder.path), lambda: _by_signs(folder, lists, options, tag))
    modules = read_modules(lists)
    if task == EMBEDDING:
        check_modules(modules, str(folder.path))
        check_files(modules, folder.describing.keys(), str(folder.path))
        prompt_of(lists)
        bound_of(modules, lists)
    elif is_static(modules):
        raise NotSupportedError(
            f"{folder.path}: its {STATIC} has one vector for each text, which is the task {EMBEDDING}, and no {task}; "
            "state that task, or none"
        )
    elif task == TEXT_CLASSIFICATION and function_to_apply(folder.config, lists, str(folder.path)) and prompt_of(lists):
        raise NotSupportedError(
            f"{folder.path}: its CrossEncoder has a default prompt, which is not put before texts here; take "
            "default_prompt_name out of config_sentence_transformers.json, and send it with each text"
        )
    return task


def check_options_in(folder: ModelFolder, task: str, given: Mapping[str, Any]) -> None:
    """Raise NotSupportedError for options of a predictor that the task, or this folder, does not have.

    Args:
        given: `predictor.options`.
    """
    lists = folder.read_lists()
    check_options(given, task, is_static=task == EMBEDDING and is_static(read_modules(lists)))
    if task == EMBEDDING:
        prompt_of(lists, given.get("prompt"))


def tag_of(folder: Path) -> str:
    """Return the `pipeline_tag` in the README of a folder; empty for none."""
    try:
        with (folder / _README).open("rb") as file:
            head = file.read(_MOST_README_BYTES)
    except OSError:
        return ""
    found = _TAG.search(head.partition(b"\n---")[0]) if head.startswith(b"---") else None
    return found[1].decode() if found else ""


def _by_signs(folder: ModelFolder, lists: Mapping[str, bytes], options: Mapping[str, Any], tag: str) -> str | None:
    if (tagged := task_of_tag(tag)) is not None:
        return tagged
    if function_to_apply(folder.config, lists, str(folder.path)) is not None:
        return TEXT_CLASSIFICATION
    if settings_in(lists):
        return EMBEDDING
    files = folder.describing
    sees = "preprocessor_config.json" in files and not any(map(_TOKENIZER.match, files))
    return task_of_weights(folder.config, _names_of(folder, options), sees=sees)


def _names_of(folder: ModelFolder, options: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the tensors; none if only torch can read them."""
    try:
        found = format_of(folder.weights).contents(weights_of(folder.weights, options))
    except (ArtifactError, NotSupportedError):
        return ()
    return [each.name for each in found.sources]
