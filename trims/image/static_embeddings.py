"""Making the module of a static embedding: a table with a vector for each token, whose mean is a text's vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trims.core.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Name of the table in the module, and as sentence-transformers and model2vec save it.
TABLE = "embedding"
_SAVED, _MODEL2VEC = f"{TABLE}.weight", "embeddings"


def make_static(state: Mapping[str, torch.Tensor], what: str) -> tuple[torch.nn.Module, frozenset[str]]:
    """Return the module in eval mode, and the names of tensors that it does not use. Raises ArtifactError.

    Args:
        state: Tensors by their names in the file. A table that needs no change becomes the module's own.
        what: Owner of the module, for messages.
    """
    used = {_SAVED} if _SAVED in state else {_MODEL2VEC, "mapping", "weights"}
    table = state.get(_SAVED) if _SAVED in state else _of_model2vec(state)
    if table is None or table.dim() != 2 or not table.is_floating_point():
        raise ArtifactError(
            f"{what} has no table of vectors, which StaticEmbedding keeps as {_SAVED} or {_MODEL2VEC}; it has "
            f"{', '.join(sorted(state)[:20])}"
        )
    bag = torch.nn.EmbeddingBag(*table.shape, mode="mean", _weight=table)
    return torch.nn.ModuleDict({TABLE: bag}).eval(), frozenset(state.keys() - used)


def _of_model2vec(state: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the table of a model of model2vec, whose tokens may share rows and have weights of their own."""
    table = state.get(_MODEL2VEC)
    if table is None or table.dim() != 2:
        return table
    if (rows := state.get("mapping")) is not None:
        table = table[rows.to(torch.long)]
    if (weights := state.get("weights")) is not None:
        kind = table.dtype
        table = (table.to(torch.promote_types(kind, torch.float32)) * weights[:, None]).to(kind)
    return table.contiguous()
