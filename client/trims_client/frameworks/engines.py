"""Weights for inference engines that take loaders of others: tensors by name, as their own loaders yield them.

`trims.vllm` and `trims.sglang` are such loaders. The weights come from shared memory, once for all processes of an
engine, and the engine copies them into its own parameters. They are copy-on-write, as those of the engines' loaders
are: a model that changes a tensor while it loads changes its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from trims_client.frameworks._torch_views import state_dict
from trims_client.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from trims_client.weights import Weights

#: Names of a model's checkpoint: in several files, and in one. Folders with further ones are the engines' own to read.
_INDEX, _SINGLE = "model.safetensors.index.json", ("model.safetensors", "pytorch_model.bin")
_PLACE = "cpu"


class EngineOptions(NamedTuple):
    """Options of a loader.

    Attributes:
        name: Model in the store; without one, the checkpoint in the engine's folder is opened by its path.
        runtime_dir: The daemon's.
    """

    name: str | None = None
    runtime_dir: str | None = None


def read_options(given: Mapping[str, Any] | None) -> EngineOptions:
    """Return an engine's extra configuration as options. Raises ValueError for others."""
    given = given or {}
    if unknown := given.keys() - set(EngineOptions._fields):
        raise ValueError(f"unknown options of the loader trims: {', '.join(sorted(unknown))}; it has name, runtime_dir")
    return EngineOptions(**given)


def weights_of(options: EngineOptions, folder: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and tensors. Raises ValueError if there is neither a name nor a checkpoint, and as `Session.open`."""
    with Session(options.runtime_dir) as session, _opened(session, options, folder) as weights:
        yield from state_dict(weights, writable=True).items()


def load_ahead(options: EngineOptions, folder: str) -> None:
    """Have the daemon bring the weights to memory. Raises as `weights_of`."""
    with Session(options.runtime_dir) as session:
        _opened(session, options, folder).close()


def _opened(session: Session, options: EngineOptions, folder: str) -> Weights:
    if options.name is not None:
        return session.open(options.name, place=_PLACE)
    files = os.listdir(folder) if os.path.isdir(folder) else []
    weights = [name for name in files if name.endswith(".safetensors")] or [n for n in files if n.endswith(".bin")]
    if _INDEX in files:
        return session.open_file(os.path.join(folder, _INDEX), place=_PLACE)
    if len(weights) == 1 and weights[0] in _SINGLE:
        return session.open_file(os.path.join(folder, weights[0]), place=_PLACE)
    raise ValueError(
        f"{folder} has no {_INDEX}, nor one of {', '.join(_SINGLE)} alone; state the model's name in the store as the "
        "option `name`"
    )
