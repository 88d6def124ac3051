"""Folders of Hugging Face models: `config.json`, weights, tokenizer and what else is beside them, as one model.

The main file is `config.json`, or `modules.json` of a folder without that. Weights are read as the formats
`safetensors` and `torch` read them. The image carries the describing files and the module's skeleton, which the
architecture's class in transformers gives: a session has module and tokenizer without the folder. A folder is also
served in place: sessions then make the module themselves.

Options:
    task: what the model answers (`trims.manifests.tasks`); by default what the folder says.
    weights: name of the file with the weights, where the folder has several.
    trust_remote_code: run the Python files that `config.json` names (`auto_map`).
    allow_pickle: as for format `torch`, for weights in pickled files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from trims.core.errors import ArtifactError, CallerError, NotSupportedError
from trims.formats.base import check_options
from trims.formats.safetensors.converter import SafetensorsConverter
from trims.formats.transformers.folder import CONFIG, ModelFolder, read_folder
from trims.formats.transformers.task import check_options_in, task_in
from trims.formats.transformers.weights import format_of, weight_options, weights_of
from trims.image.model_files import Described, with_files
from trims.image.program import TRANSFORMERS, TRANSFORMERS_CODE, Program
from trims.manifests.sentence_modules import MODULES
from trims.manifests.tasks import signature_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trims.formats.base import Artifact
    from trims.image.plan import Contents, ImagePlan
    from trims.manifests.serving import Signature

_OPTIONS = ("task", "weights", "trust_remote_code")


class TransformersConverter:
    """See the module."""

    format: ClassVar[str] = "transformers"
    version: ClassVar[int] = 3
    host_specific: ClassVar[bool] = False

    def needs_child(self, options: Mapping[str, Any]) -> bool:
        """Return True: the converter imports torch and transformers."""
        del options
        return True

    def frameworks(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return torch and transformers, to whose versions the skeleton belongs."""
        del options
        return ("torch", "transformers")

    def claims(self, main: Path, first_bytes: bytes) -> bool:
        """Return whether the file is a `config.json` that names a type of models, or a list of modules."""
        if main.name == MODULES:
            return b'"type"' in first_bytes
        return main.name == CONFIG and (b'"model_type"' in first_bytes or b'"architectures"' in first_bytes)

    def files(self, main: Path, options: Mapping[str, Any]) -> tuple[Path, ...]:
        """Return the main file, the weights, and all that describes the model beside them."""
        folder = _folder(main, options)
        weights = format_of(folder.weights).files(folder.weights, weight_options(options))
        describing = [path for path in folder.describing.values() if path != main and path not in weights]
        return (main, *weights, *describing)

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Make the module, and lay out its tensors with its skeleton."""
        from trims.formats.transformers.skeleton import contents_of

        folder = _folder(artifact.files[0], artifact.options)
        weights = weights_of(folder.weights, artifact.options)
        trusted = bool(artifact.options.get("trust_remote_code"))
        return contents_of(weights, _described(folder, artifact.options), with_code=trusted).plan()

    def may_be_in_place(self, options: Mapping[str, Any]) -> bool:
        """Return True: a session makes the module that has no skeleton yet."""
        del options
        return True

    def contents(self, artifact: Artifact) -> Contents:
        """Return the tensors of the weights' files, with a program that a session makes the module of."""
        options = artifact.options
        folder = _folder(artifact.files[0], options)
        found = format_of(folder.weights).contents(weights_of(folder.weights, options))
        kind = TRANSFORMERS_CODE if options.get("trust_remote_code") else TRANSFORMERS
        return replace(found, program=with_files(Program(kind), _described(folder, options)))

    def described_bytes(self, artifact: Artifact) -> int:
        """Return about how many bytes `contents` parses: those of the weights' headers."""
        folder = _folder(artifact.files[0], artifact.options)
        chosen = format_of(folder.weights)
        return (
            chosen.described_bytes(weights_of(folder.weights, artifact.options))
            if isinstance(chosen, SafetensorsConverter)
            else 0
        )

    def least_bytes(self, artifact: Artifact) -> int:
        """Return 0: a task may leave out tensors of the file."""
        del artifact
        return 0

    def signature(self, artifact: Artifact) -> Signature:
        """Return the inputs and outputs of the model's task."""
        return signature_of(self.task(artifact.files[0], artifact.options))

    def task(self, main: Path, options: Mapping[str, Any]) -> str:
        """Return the task of a model. Raises ArtifactError."""
        return _task(_folder(main, options), options)

    def check_options(self, main: Path, options: Mapping[str, Any], task: str, given: Mapping[str, Any]) -> None:
        """Raise NotSupportedError for `predictor.options` that a model's predictor would refuse.

        Args:
            main: Main file of the model.
            given: `predictor.options`.
        """
        check_options_in(_folder(main, options), task, given)


def _folder(main: Path, options: Mapping[str, Any]) -> ModelFolder:
    """Look at the folder of a `config.json`. Raises ArtifactError for options that are wrong."""
    check_options(main, options, _OPTIONS)
    weights, trusted = options.get("weights", ""), options.get("trust_remote_code", False)
    if not isinstance(weights, str) or "/" in weights:
        raise ArtifactError(f"{main}: the option weights must be the name of a file beside it, not {weights!r:.100}")
    if not isinstance(trusted, bool):
        raise ArtifactError(f"{main}: the option trust_remote_code must be true or false, not {trusted!r:.100}")
    try:
        return read_folder(main, weights, with_code=trusted)
    except NotSupportedError:
        raise
    except CallerError as error:
        raise ArtifactError(str(error)) from error


def _task(folder: ModelFolder, options: Mapping[str, Any]) -> str:
    try:
        return task_in(folder, options)
    except NotSupportedError:
        raise
    except CallerError as error:
        raise ArtifactError(str(error)) from error


def _described(folder: ModelFolder, options: Mapping[str, Any]) -> Described:
    return Described(_task(folder, options), folder.read())
