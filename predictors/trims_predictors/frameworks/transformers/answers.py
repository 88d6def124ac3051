"""Parts of a loaded model, and the answer to one request in the forms that clients ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    #: Sends a part of an answer, None for nothing; says whether the client still waits for more.
    Emit = Callable[["Arrays | None"], bool]

    import numpy as np
    import torch

    from trims.image.model_files import Described
    from trims_predictors.api import Arrays
    from trims_predictors.frameworks.transformers.requests import Inputs


class Parts(NamedTuple):
    """Parts of a model from which its task's code is made.

    Attributes:
        module: Module on shared weights, in eval mode.
        described: Files of the model's folder.
        folder: A folder with these files, until the model is loaded.
        options: `predictor.options` of the manifest.
        with_code: Python files of the folder may run.
    """

    module: torch.nn.Module
    described: Described
    folder: str
    options: Mapping[str, Any]
    with_code: bool

    def tokenizer(self) -> Any:
        """Return the model's tokenizer. Raises NotSupportedError."""
        from trims_predictors.frameworks.transformers.tokens import tokenizer_in

        return tokenizer_in(self.folder, self.described.files, with_code=self.with_code)


class Answer(NamedTuple):
    """Answer to one request; each form is made only if it is asked for.

    Attributes:
        outputs: The task's own tensors.
        rows: One JSON value for each row, as a pipeline answers.
        kserve: The one tensor of KServe's runtime.
        extras: Tensors that an answer has only if they are asked for by name.
    """

    outputs: Callable[[], Arrays]
    rows: Callable[[], Sequence[Any]]
    kserve: Callable[[], np.ndarray[Any, Any]]
    extras: Callable[[], Arrays] = dict


class Answering(Protocol):
    """Code of one task over a loaded model."""

    def __call__(self, inputs: Inputs) -> Answer:
        """Answer one request. Raises CallerError for inputs that the task cannot read."""
        ...


@runtime_checkable
class Streaming(Protocol):
    """Code of a task whose answers come in parts."""

    answers_alone: bool

    def __call__(self, inputs: Inputs, emit: Emit, *, streams: bool) -> Answer:
        """Answer one request; send parts if it streams, and end early if `emit` says that its client has gone."""
        ...
