"""Modules of static embeddings."""

from __future__ import annotations

import pytest
import torch

from trims.core.errors import ArtifactError
from trims.image.static_embeddings import TABLE, make_static


def test_a_table_becomes_the_modules_own_and_other_tensors_stay_unused() -> None:
    table = torch.arange(6.0).reshape(3, 2)
    module, unused = make_static({"embedding.weight": table, "other": torch.zeros(1)}, "m")
    assert module.state_dict()["embedding.weight"].data_ptr() == table.data_ptr()
    assert unused == {"other"}
    assert not module.training
    assert module.get_submodule(TABLE)(torch.tensor([0, 2]), torch.tensor([0, 2])).tolist() == [[2, 3], [0, 0]]


def test_rows_that_tokens_share_are_told_apart_by_their_weights() -> None:
    state = {
        "embeddings": torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float16),
        "mapping": torch.tensor([1, 0, 1]),
        "weights": torch.tensor([1.0, 2.0, 0.5]),
    }
    module, unused = make_static(state, "m")
    made = module.state_dict()["embedding.weight"]
    assert (made.dtype, made.tolist()) == (torch.float16, [[3, 4], [2, 4], [1.5, 2]])
    assert not unused


@pytest.mark.parametrize(
    "state",
    [{}, {"table": torch.zeros(2, 2)}, {"embedding.weight": torch.zeros(2)}, {"embeddings": torch.zeros(2)},
     {"embeddings": torch.zeros(2, 2, dtype=torch.int64)}],
)  # fmt: skip
def test_what_is_no_table_is_refused_with_what_is_there(state: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ArtifactError, match=r"m has no table of vectors.*it has"):
        make_static(state, "m")
