"""Settings of a predictor against what is known of its artifact. Registration and `trims validate` refuse by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.formats.transformers.converter import TransformersConverter
from trims.manifests.runs import check_unread_options, framework_in
from trims.manifests.task_options import check_options
from trims.manifests.tasks import TASKS, check_batches

if TYPE_CHECKING:
    from pathlib import Path

    from trims.formats.base import Converter
    from trims.manifests.manifest import Manifest


def check_settings(manifest: Manifest, chosen: Converter | None, main: Path | None) -> None:
    """Raise NotSupportedError for settings with which every request would fail.

    Args:
        chosen: Reads its artifact; None if nothing says which converter does.
        main: File of the artifact; None if it is not here yet, where the task that the manifest states counts.

    Raises ArtifactError for a folder of a Hugging Face model that cannot be read, too.
    """
    settings, source = manifest.predictor, manifest.artifact
    framework = framework_in(manifest, "" if chosen is None else chosen.format)
    check_unread_options(manifest.name, settings, framework)
    if settings.has_own_code or source.model is not None:
        return
    stated = source.options.get("task")
    if main is not None and isinstance(chosen, TransformersConverter):
        task = chosen.task(main, source.options)
        check_batches(task, settings.max_batch_size, manifest.name)
        if framework == chosen.format:
            chosen.check_options(main, source.options, task, settings.options)
    elif main is None and isinstance(stated, str) and stated in TASKS:
        check_batches(stated, settings.max_batch_size, manifest.name)
        check_options(settings.options, stated)
