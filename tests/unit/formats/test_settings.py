"""Settings of a predictor that its artifact, or what the manifest states of that, does not allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tiny_models import named, save

from trims.core.errors import NotSupportedError
from trims.formats.conversion.conversion import converter
from trims.formats.settings import check_settings
from trims.manifests.manifest import parse_manifest

if TYPE_CHECKING:
    from pathlib import Path

ADDRESS = {"uri": "hf://org/m"}
UNKNOWN = "the task .* does not know"


def check(artifact: dict[str, Any], main: Path | None = None, found: str = "", **predictor: Any) -> None:
    """Check a manifest with these settings, whose artifact is of the format that was `found`."""
    manifest = parse_manifest({"name": "m", "artifact": artifact, "predictor": predictor})
    check_settings(manifest, converter(found) if found else None, main)


def test_a_folder_is_held_against_its_own_task(tmp_path: Path) -> None:
    main = save(named("BertForQuestionAnswering"), tmp_path / "m") / "config.json"
    for wrong, words in (({"options": {"top_k": 1}}, UNKNOWN), ({"max_batch_size": 2}, "cannot run together")):
        with pytest.raises(NotSupportedError, match=words):
            check({"path": str(main)}, main, "transformers", **wrong)
    check({"path": str(main)}, main, "transformers", options={"max_answer_len": 3})
    check({"path": str(main)}, main, "transformers", call="mine:Own", options={"top_k": 1}, max_batch_size=2)


def test_what_is_not_here_yet_is_held_against_the_task_that_is_stated() -> None:
    stated = {**ADDRESS, "options": {"task": "question-answering"}}
    for wrong, words in (({"options": {"top_k": 1}}, UNKNOWN), ({"max_batch_size": 2}, "cannot run together")):
        with pytest.raises(NotSupportedError, match=words):
            check(stated, **wrong)
        check(ADDRESS, **wrong)


def test_options_that_nothing_reads_are_refused() -> None:
    with pytest.raises(NotSupportedError, match="which the predictor for onnxruntime does not know"):
        check(ADDRESS, found="onnx", options={"top_k": 1})
    with pytest.raises(NotSupportedError, match="which a handler does not know"):
        check({"model": "x"}, handler="f.py:h", options={"as": "torch", "top_k": 1})
    check({"model": "x"}, handler="f.py:h", options={"as": "torch"})
    check(ADDRESS, found="onnx", function="mine:own", options={"top_k": 1})
