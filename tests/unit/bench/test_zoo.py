"""Many models and their clients, with models of a few kilobytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from trims_bench.zoo import Load, clients, drop_pages, make_models

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 1100}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


@pytest.mark.bench_smoke
def test_models_have_weights_and_answers_of_their_own_and_clients_check_them(folder: Path) -> None:
    models = make_models(folder, 2, SHAPE)
    assert models[0].answer != models[1].answer
    assert models[0].nbytes == (models[0].folder / "model.safetensors").stat().st_size
    assert models[0].manifest(SHAPE)["artifact"]["options"]["module_args"] == {"architecture": "minilm", **SHAPE}
    with clients("transformers", models, 2, folder) as both:
        taken = both.take(Load(zipf=1.0, clients=2, seconds=0.0))
        assert len(taken) >= 2
        assert min(taken) > 0
        assert len(both.take(Load(zipf=0.0, clients=1, seconds=0.0))) >= 1


def test_pages_that_were_dropped_are_read_again(folder: Path) -> None:
    (folder / "some").write_bytes(b"x" * 10_000)
    drop_pages(folder)
    assert (folder / "some").read_bytes() == b"x" * 10_000
