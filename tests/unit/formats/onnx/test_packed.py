"""Images with weights as ONNX Runtime packs them: where they lie, and what ONNX Runtime makes of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402
from onnx_models import attention, convolution, feeds, own_answer, save, value, write_image  # noqa: E402

from trims.core.errors import ArtifactError, ConversionError  # noqa: E402
from trims.formats.base import Artifact  # noqa: E402
from trims.formats.onnx.converter import OnnxConverter  # noqa: E402
from trims.formats.onnx.packed import BLOCK, PackedWeights  # noqa: E402
from trims.image.external import exchange_name  # noqa: E402
from trims.image.reader import ImageView  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODELS = pytest.mark.parametrize("make", [attention, convolution])


def plan(main: Path, **options: Any) -> Any:
    return OnnxConverter().plan(Artifact("onnx", (main,), {"prepack": "shared", **options}))


def mapping_session(image: Path) -> Any:
    """A session for which ONNX Runtime maps the weights from the image by itself."""
    program = ImageView(memoryview(image.read_bytes())).program()
    assert program is not None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(image.parent))
    body = exchange_name(program.body, program.attributes["packed"]["name"], image.name)
    return onnxruntime.InferenceSession(body, options, providers=["CPUExecutionProvider"])


@MODELS
def test_the_runtime_maps_the_image_and_packs_nothing_else(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    main = make(tmp_path)
    path = write_image(plan(main), tmp_path / "an.image")
    main.rename(tmp_path / "away.onnx")
    session = mapping_session(path)
    (answer,) = session.run(None, feeds(main))
    (tmp_path / "away.onnx").rename(main)
    np.testing.assert_array_equal(answer, own_answer(main, prepack=True))


@MODELS
def test_the_block_holds_what_the_runtime_would_pack(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Spoil the block: a session that used other bytes than those of the image would not notice."""
    main = make(tmp_path)
    path = write_image(plan(main), tmp_path / "an.image")
    view = ImageView(path.read_bytes())
    spec = view.layout.tensors[BLOCK]
    assert spec.nbytes > 0
    with path.open("r+b") as file:
        file.seek(view.data_start + spec.offset)
        file.write(np.full(spec.nbytes // 4, 3.0, np.float32).tobytes())
    session = mapping_session(path)
    (answer,) = session.run(None, feeds(main))
    assert not np.allclose(answer, own_answer(main, prepack=True))


@MODELS
def test_weights_are_there_as_published_too(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    main = make(tmp_path)
    with_block = ImageView(write_image(plan(main), tmp_path / "1").read_bytes())
    without = ImageView(write_image(plan(main, prepack=False), tmp_path / "2").read_bytes())
    assert {*with_block.layout.tensors} - {*without.layout.tensors} == {BLOCK}
    for name in without.layout.tensors:
        assert with_block.tensor(name) == without.tensor(name)


def test_a_model_with_nothing_to_pack_has_no_block(tmp_path: Path) -> None:
    shapes = [value(name, TensorProto.FLOAT, [1000]) for name in ("x", "y")]
    weights = {"w": np.ones(1000, np.float32)}
    main = save(tmp_path / "m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], shapes[:1], shapes[1:], weights)
    view = ImageView(write_image(plan(main), tmp_path / "image").read_bytes())
    assert list(view.layout.tensors) == ["w"]
    program = view.program()
    assert program is not None
    assert "packed" not in program.attributes


@pytest.mark.parametrize("optimize", ["none", "basic", "extended"])
def test_packed_weights_are_for_one_processor(tmp_path: Path, optimize: str) -> None:
    with pytest.raises(ArtifactError, match=f"prepack: shared is for one processor and needs .* not {optimize}"):
        plan(attention(tmp_path), optimize=optimize)


@pytest.mark.parametrize("entry", ["key|1;2", "key|a;2;0", "key|"])
def test_a_description_that_is_not_known_is_refused(tmp_path: Path, entry: str) -> None:
    model = onnx.load(attention(tmp_path))
    pair = model.graph.initializer[0].external_data.add()
    pair.key, pair.value = "prepacked_0", entry
    with pytest.raises(ConversionError, match=r"'table': this ONNX Runtime describes packed weights as 'key\|"):
        PackedWeights.read(model)


def test_packed_weights_that_were_not_written_in_full_are_refused(tmp_path: Path) -> None:
    model = onnx.load(attention(tmp_path))
    pair = model.graph.initializer[0].external_data.add()
    pair.key, pair.value = "prepacked_0", "key|0;64;0|64;65;0"
    packed = PackedWeights.read(model)
    assert packed.nbytes == 64 + 128
    with pytest.raises(ConversionError, match="not written in full"):
        packed.source(memoryview(bytes(128)))
