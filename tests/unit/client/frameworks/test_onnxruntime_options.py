"""Options and providers of a session: the user's are kept, and refused where shared weights cannot follow."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from onnx_models import NO_PREPACKING, convolution, feeds, own_answer, write_image  # noqa: E402
from trims_client.frameworks import onnxruntime as shared  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.core.errors import CallerError, NotSupportedError  # noqa: E402
from trims.formats.base import Artifact  # noqa: E402
from trims.formats.onnx.converter import OnnxConverter  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


def attach(main: Path, **options: Any) -> Weights:
    plan = OnnxConverter().plan(Artifact("onnx", (main,), options))
    return Weights.map_file(write_image(plan, main.with_suffix(".image")))


def test_the_manifests_thread_hint_yields_to_the_users(tmp_path: Path) -> None:
    main = convolution(tmp_path)
    mine = onnxruntime.SessionOptions()
    mine.intra_op_num_threads = 1
    with attach(main, threads=2) as weights:
        assert shared.session(weights).get_session_options().intra_op_num_threads == 2
        assert shared.session(weights, session_options=mine).get_session_options().intra_op_num_threads == 1


def test_a_user_may_choose_prepacking_for_one_session(tmp_path: Path) -> None:
    main = convolution(tmp_path)
    mine = onnxruntime.SessionOptions()
    mine.add_session_config_entry(NO_PREPACKING, "0")
    with attach(main) as weights:
        (answer,) = shared.session(weights, session_options=mine).run(None, feeds(main))
    np.testing.assert_array_equal(answer, own_answer(main, prepack=True))


def test_options_serve_one_session(tmp_path: Path) -> None:
    mine = onnxruntime.SessionOptions()
    with attach(convolution(tmp_path)) as weights:
        shared.session(weights, session_options=mine)
        with pytest.raises(CallerError, match="carry the weights of"):
            shared.session(weights, session_options=mine)


@pytest.mark.parametrize(
    ("field", "setting", "complaint"),
    [
        ("graph_optimization_level", onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC, "optimized when"),
        ("optimized_model_filepath", "/tmp/never-written.onnx", "cannot be saved"),
    ],
)
def test_options_that_cannot_be_respected_are_refused(tmp_path: Path, field: str, setting: Any, complaint: str) -> None:
    mine = onnxruntime.SessionOptions()
    setattr(mine, field, setting)
    with attach(convolution(tmp_path)) as weights, pytest.raises(NotSupportedError, match=complaint):
        shared.session(weights, session_options=mine)


@pytest.mark.parametrize("provider", ["CUDAExecutionProvider", ("CUDAExecutionProvider", {"device_id": "0"})])
def test_a_provider_that_would_copy_the_weights_is_refused(tmp_path: Path, provider: Any) -> None:
    with (
        attach(convolution(tmp_path)) as weights,
        pytest.raises(NotSupportedError, match="CUDAExecutionProvider would copy"),
    ):
        shared.session(weights, providers=[provider, "CPUExecutionProvider"])
