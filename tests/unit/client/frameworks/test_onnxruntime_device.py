"""ONNX Runtime over weights on a device: lent initializers, those it wants on the host, and clear refusals."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402
from onnx_models import (  # noqa: E402
    attention,
    convolution,
    feeds,
    own_answer,
    save,
    value,
    write_image,
)
from trims_client.frameworks import onnxruntime as shared  # noqa: E402
from trims_client.mapping import dlpack  # noqa: E402

from trims.core.errors import NotSupportedError  # noqa: E402
from trims.formats.base import Artifact  # noqa: E402
from trims.formats.onnx.converter import INLINE_INTEGERS_BELOW_BYTES, OnnxConverter  # noqa: E402
from trims.testing.in_place import reads_in_place  # noqa: E402

if not hasattr(onnxruntime.OrtValue, "from_dlpack"):
    pytest.skip("this ONNX Runtime takes no memory of devices", allow_module_level=True)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_weights import DeviceShelf
    from trims_client.weights import Weights

CUDA_PROVIDER = "CUDAExecutionProvider"


@pytest.fixture
def opened(shelf: DeviceShelf) -> Callable[..., Weights]:
    def open_model(main: Path, optimize: str = "basic") -> Weights:
        plan = OnnxConverter().plan(Artifact("onnx", (main,), {"optimize": optimize}))
        return shelf.open(write_image(plan, main.with_suffix(".image")))

    return open_model


@pytest.fixture
def as_cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[[Weights], Weights]:
    """Call the fake's memory a CUDA device's, and say that ONNX Runtime knows CUDA: it plans on the host."""
    there = [CUDA_PROVIDER, *onnxruntime.get_available_providers()]

    def pretend(weights: Weights, number: int = 0) -> Weights:
        monkeypatch.setattr(weights._attachment.region, "dlpack_device", (dlpack.CUDA, number))
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: there)
        return weights

    return pretend


def adding(folder: Path, onnx_type: int, weights: Any) -> Path:
    """y = cast(w) + x."""
    nodes = [helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT), helper.make_node("Add", ["f", "x"], ["y"])]
    shape = list(weights.shape)
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, shape)],
        [helper.make_tensor("w", onnx_type, shape, weights.tobytes(), raw=True)],
    )
    path = folder / "adding.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    return path


@pytest.mark.parametrize("optimize", ["basic", "none"])
@pytest.mark.parametrize("make", [convolution, attention])
def test_answers_are_bit_identical_to_the_runtimes_own(
    tmp_path: Path, opened: Callable[..., Weights], make: Callable[[Path], Path], optimize: str
) -> None:
    main, level = make(tmp_path), {"basic": "ORT_ENABLE_BASIC", "none": "ORT_DISABLE_ALL"}[optimize]
    session = shared.session(opened(main, optimize))
    (answer,) = session.run(None, feeds(main))
    np.testing.assert_array_equal(answer, own_answer(main, level=level))
    assert session.host_copies == ()


def test_the_session_reads_the_devices_memory_itself(
    tmp_path: Path, shelf: DeviceShelf, opened: Callable[..., Weights]
) -> None:
    nodes, weights = [helper.make_node("Add", ["x", "w"], ["y"])], {"w": np.zeros(1000, np.float32)}
    ends = [[value(name, TensorProto.FLOAT, [1000])] for name in ("x", "y")]
    attached = opened(save(tmp_path / "m.onnx", nodes, *ends, weights))
    session = shared.session(attached)

    def answer() -> bytes:
        return bytes(session.run(None, {"x": np.zeros(1000, np.float32)})[0].tobytes())

    changed = np.float32(7).tobytes()
    with shelf.writable(tmp_path / "m.image") as block:
        address = block + attached.on_device("w").address - attached._attachment.region.address
        assert reads_in_place(shelf.owner.cuda, address, changed, answer)
        assert not reads_in_place(shelf.owner.cuda, address, changed, lambda: b"a copy's")
    assert shelf.bytes_of(tmp_path / "m.image") == (tmp_path / "m.image").read_bytes()


@pytest.mark.parametrize(
    ("onnx_type", "name"),
    [(TensorProto.BOOL, "bool"), (TensorProto.BFLOAT16, "bfloat16"), (TensorProto.FLOAT16, "float16"),
     (TensorProto.INT64, "int64"), (TensorProto.UINT8, "uint8")],
)  # fmt: skip
def test_dtypes_of_a_device_are_lent_as_what_they_are(
    tmp_path: Path, opened: Callable[..., Weights], onnx_type: int, name: str
) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = getattr(ml_dtypes, name, None) or np.dtype(name)
    array = (np.arange(100_000) % 2).astype(dtype)
    attached = opened(adding(tmp_path, onnx_type, array), "none")
    assert list(attached) == ["w"]
    (answer,) = shared.session(attached).run(None, {"x": np.ones(1, np.float32)})
    np.testing.assert_array_equal(answer, array.astype(np.float32) + 1)


def test_a_dtype_that_cannot_be_lent_is_refused_by_name(tmp_path: Path, opened: Callable[..., Weights]) -> None:
    array = np.zeros(2048, np.uint8)
    attached = opened(adding(tmp_path, TensorProto.FLOAT8E4M3FN, array), "none")
    with pytest.raises(NotSupportedError, match=r"no F8_E4M3 from a device .initializer 'w'.*place='cpu'"):
        shared.session(attached)


@pytest.mark.parametrize("level", ["all", "extended"])
def test_what_was_optimized_for_the_processor_is_refused_with_the_option_to_set(
    tmp_path: Path, opened: Callable[..., Weights], level: str
) -> None:
    with pytest.raises(NotSupportedError, match=rf"\(optimize: {level}\).*say `optimize: basic`"):
        shared.session(opened(convolution(tmp_path), level))


def test_a_session_outlives_its_weights_and_the_last_of_it_ends_the_lease(
    tmp_path: Path, shelf: DeviceShelf, opened: Callable[..., Weights]
) -> None:
    main = convolution(tmp_path)
    weights = opened(main)
    session = shared.session(weights)
    weights.close()
    session.run(None, feeds(main))
    assert dlpack.collect() == 3
    assert not shelf.released
    del session, weights
    gc.collect()
    assert dlpack.collect() == 0
    assert len(shelf.released) == 1


def test_small_integers_travel_in_the_program_where_it_may_run_on_a_device(tmp_path: Path) -> None:
    """Small integers are shapes and positions, which ONNX Runtime reads on the host."""
    small, large = (np.arange(count, dtype=np.int64) for count in (512, INLINE_INTEGERS_BELOW_BYTES // 8))
    nodes = [helper.make_node("Add", ["small", "x"], ["s"]), helper.make_node("Add", ["large", "x"], ["l"])]
    outputs = [value("s", TensorProto.INT64, ["S"]), value("l", TensorProto.INT64, ["L"])]
    main = save(tmp_path / "m.onnx", nodes, [value("x", TensorProto.INT64, [1])], outputs,
                {"small": small, "large": large})  # fmt: skip
    for optimize, fed in (("all", ["large", "small"]), ("basic", ["large"]), ("none", ["large"])):
        plan = OnnxConverter().plan(Artifact("onnx", (main,), {"optimize": optimize}))
        assert sorted(spec.name for spec in plan.layout) == fed


# -- CUDA's provider ---------------------------------------------------------------------------------------------------


def test_without_cuda_in_the_runtime_the_remedy_is_named(tmp_path: Path, opened: Any, as_cuda: Any) -> None:
    weights = as_cuda(opened(convolution(tmp_path)))
    onnxruntime.get_available_providers = lambda: ["CPUExecutionProvider"]
    with pytest.raises(NotSupportedError, match=r"no CUDAExecutionProvider \(it has CPU.*onnxruntime-gpu.*place='cpu'"):
        shared.session(weights)


def test_the_provider_is_given_the_device_the_weights_lie_on(tmp_path: Path, opened: Any, as_cuda: Any) -> None:
    weights, cpu = as_cuda(opened(convolution(tmp_path)), 3), "CPUExecutionProvider"
    for given, wanted in [
        (None, [(CUDA_PROVIDER, {"device_id": 3}), cpu]),
        ([CUDA_PROVIDER, cpu], [(CUDA_PROVIDER, {"device_id": 3}), cpu]),
        ([(CUDA_PROVIDER, {"device_id": "3", "a": 1})], [(CUDA_PROVIDER, {"device_id": 3, "a": 1})]),
    ]:
        assert shared._providers_on_device(weights, weights.program(), given) == wanted
    with pytest.raises(NotSupportedError, match=r"is device 3 in this process; .* was given device_id 0"):
        shared.session(weights, providers=[(CUDA_PROVIDER, {"device_id": 0})])
    with pytest.raises(NotSupportedError, match="TensorrtExecutionProvider would copy"):
        shared.session(weights, providers=["TensorrtExecutionProvider", CUDA_PROVIDER])


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
def test_floats_that_the_runtime_wants_on_the_host_refuse_the_model_after_one_try(
    tmp_path: Path, opened: Any, as_cuda: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime's own planning: without the provider it plans everything on the host, and ignores what is lent."""
    weights = as_cuda(opened(convolution(tmp_path)))
    made: list[object] = []
    own = onnxruntime.InferenceSession.__init__

    def count(self: object, *given: object, **named: object) -> None:
        made.append(self)
        own(self, *given, **named)

    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", count)
    with pytest.raises(NotSupportedError, match=r"initializer '\w+' \(F32\) on the host, because .* place='cpu'"):
        shared.session(weights)
    assert len(made) == 1, "not a session for each weight"


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
@pytest.mark.parametrize("own_options", [False, True])
@pytest.mark.parametrize(("onnx_type", "name"), [(TensorProto.INT64, "int64"), (TensorProto.BOOL, "bool")])
def test_integers_that_the_runtime_wants_on_the_host_are_copied_there_and_told(
    tmp_path: Path, opened: Any, as_cuda: Any, caplog: pytest.LogCaptureFixture,
    onnx_type: int, name: str, *, own_options: bool,
) -> None:  # fmt: skip
    array = (np.arange(100_000) % 2).astype(name)
    options = onnxruntime.SessionOptions() if own_options else None
    session = shared.session(as_cuda(opened(adding(tmp_path, onnx_type, array), "none")), session_options=options)
    (answer,) = session.run(None, {"x": np.ones(1, np.float32)})
    np.testing.assert_array_equal(answer, array.astype(np.float32) + 1)
    assert session.host_copies == ("w",)
    assert "needs 1 of 1 initializers on the host" in caplog.text
