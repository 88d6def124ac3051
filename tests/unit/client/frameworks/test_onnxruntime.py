"""ONNX Runtime sessions over attached weights: the same answers, no copy, and clear refusals."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from in_place_files import weights_of  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_models import attention, convolution, feeds, own_answer, save, value, write_image  # noqa: E402
from trims_client.frameworks import _onnxruntime_options  # noqa: E402
from trims_client.frameworks import onnxruntime as shared  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.core.errors import ArtifactChangedError, CallerError, NotSupportedError  # noqa: E402
from trims.formats.base import Artifact  # noqa: E402
from trims.formats.onnx.converter import OnnxConverter  # noqa: E402
from trims.image.plan import SourceTensor, plan_image  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def attach(main: Path, **options: Any) -> Weights:
    plan = OnnxConverter().plan(Artifact("onnx", (main,), options))
    return Weights.map_file(write_image(plan, main.with_suffix(".image")))


def branching(folder: Path) -> Path:
    """Weights outside and inside the branches of an If."""
    ramp = np.arange(1000, dtype=np.float32)
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(kind, ["x", f"{name}_w"], [f"{name}_y"])],
            name,
            [],
            [value(f"{name}_y", TensorProto.FLOAT, [1000])],
            [numpy_helper.from_array(ramp, f"{name}_w")],
        )
        for name, kind in (("then", "Add"), ("else", "Sub"))
    }
    nodes = [
        helper.make_node("If", ["c"], ["b"], **branches),
        helper.make_node("Mul", ["b", "outer"], ["y"]),
    ]
    inputs = [value("x", TensorProto.FLOAT, [1000]), value("c", TensorProto.BOOL, [])]
    return save(folder / "if.onnx", nodes, inputs, [value("y", TensorProto.FLOAT, [1000])], {"outer": ramp + 1})


MODELS = pytest.mark.parametrize("make", [convolution, attention, branching])


@MODELS
@pytest.mark.parametrize(("optimize", "level"), [("all", "ORT_ENABLE_ALL"), ("none", "ORT_DISABLE_ALL")])
def test_answers_are_bit_identical_to_the_runtimes_own(
    tmp_path: Path, make: Callable[[Path], Path], optimize: str, level: str
) -> None:
    main = make(tmp_path)
    with attach(main, optimize=optimize) as weights:
        (answer,) = shared.session(weights).run(None, feeds(main))
    np.testing.assert_array_equal(answer, own_answer(main, level=level))


@MODELS
def test_with_prepacking_answers_equal_the_runtimes_default(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    main = make(tmp_path)
    with attach(main, prepack=True) as weights:
        (answer,) = shared.session(weights).run(None, feeds(main))
    np.testing.assert_array_equal(answer, own_answer(main, prepack=True))


# -- models that were not converted yet --------------------------------------------------------------------------------


def in_place(main: Path, folder: Path, **options: Any) -> Weights:
    converter = OnnxConverter()
    return weights_of(converter.contents(Artifact("onnx", converter.files(main, options), options)), folder)


@MODELS
@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("prepack", [False, True])
@pytest.mark.parametrize(
    ("optimize", "level"),
    [
        ("all", "ORT_ENABLE_ALL"),
        ("extended", "ORT_ENABLE_EXTENDED"),
        ("basic", "ORT_ENABLE_BASIC"),
        ("none", "ORT_DISABLE_ALL"),
    ],
)
def test_answers_before_a_conversion_are_those_of_the_runtime(
    tmp_path: Path, make: Callable[[Path], Path], optimize: str, level: str, prepack: bool, seen: bool
) -> None:
    main = make(tmp_path)
    wanted, given = own_answer(main, level=level, prepack=prepack), feeds(main)
    with in_place(main, tmp_path, optimize=optimize, prepack=prepack) as weights:
        if not seen:
            main.unlink()
        session = shared.session(weights)
        (answer,) = session.run(None, given)
    assert session.program.kind == "onnx-original"
    np.testing.assert_array_equal(answer, wanted)


@pytest.mark.parametrize("how", ["another length", "another time", "another file"])
def test_a_model_whose_file_is_another_by_now_is_fed_from_the_one_that_was_opened(how: str, tmp_path: Path) -> None:
    main = convolution(tmp_path)
    wanted, given = own_answer(main), feeds(main)
    with in_place(main, tmp_path) as weights:
        if how == "another length":
            main.write_bytes(b"no model")
        elif how == "another time":
            os.utime(main)
        else:
            main.rename(tmp_path / "elsewhere")
            main.write_bytes((tmp_path / "elsewhere").read_bytes())
        fed = shared.session(weights)
    assert fed._weights[0], "values are fed"
    np.testing.assert_array_equal(fed.run(None, given)[0], wanted)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A model that adds a vector of zeros, which lies in a file of its own."""
    weight = numpy_helper.from_array(np.zeros(1000, np.float32), "w")
    shapes = [value(name, TensorProto.FLOAT, [1000]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", shapes[:1], shapes[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model").mkdir()
    onnx.save(model, tmp_path / "model" / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return tmp_path / "model" / "m.onnx"


def added_by(session: shared.SharedSession) -> float:
    (answer,) = session.run(None, {"x": np.zeros(1000, np.float32)})
    return float(answer[0])


def write_seven(path: Path, at: int = 0) -> None:
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), np.float32(7).tobytes(), at)


def test_a_file_of_external_data_is_mapped_by_the_runtime_itself(beside: Path, tmp_path: Path) -> None:
    with in_place(beside, tmp_path) as weights:
        session = shared.session(weights)
        write_seven(beside.with_name("w.bin"))
        assert added_by(session) == 7, "nothing was copied"
        assert weights.copied_bytes == 0


@pytest.mark.parametrize("how", ["gone", "another", "behind a link"])
def test_external_data_that_this_process_does_not_see_is_fed(how: str, beside: Path, tmp_path: Path) -> None:
    data = beside.with_name("w.bin")
    with in_place(beside, tmp_path) as weights:
        data.rename(tmp_path / "elsewhere")
        if how == "another":
            data.write_bytes(bytes(4000))
        elif how == "behind a link":
            data.symlink_to(tmp_path / "elsewhere")
        write_seven(tmp_path / "in_place.image", weights.view.data_start + weights.layout.tensors["w"].offset)
        assert added_by(shared.session(weights)) == 7, "the mapped bytes count"


# fault (in place): a file changes while ONNX Runtime's session is made -> `artifact_changed`
@pytest.mark.parametrize("look", ["_are_the_same", "_is_the_same"])
def test_a_file_that_changes_while_a_session_is_made_is_told(
    look: str, beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looks = getattr(shared, look), itertools.count(1)
    most = 1 if look == "_are_the_same" else 2  # the external data's file, and the model's
    monkeypatch.setattr(shared, look, lambda *given: next(looks) <= most and real(*given))
    with in_place(beside, tmp_path) as weights, pytest.raises(ArtifactChangedError, match="open it again"):
        shared.session(weights)


def test_a_model_without_weights_has_a_session_before_a_conversion(tmp_path: Path) -> None:
    shapes = [value(name, TensorProto.FLOAT, [3]) for name in ("x", "y")]
    main = save(tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], shapes[:1], shapes[1:], {})
    with in_place(main, tmp_path) as weights:
        (answer,) = shared.session(weights).run(None, {"x": np.ones(3, np.float32)})
    assert answer.tolist() == [-1, -1, -1]


def test_an_initializer_that_may_be_fed_as_an_input_still_may(tmp_path: Path) -> None:
    shapes = [value(name, TensorProto.FLOAT, [1000]) for name in ("x", "w", "y")]
    weight = np.full(1000, 2, np.float32)
    main = save(
        tmp_path / "m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], shapes[:2], shapes[2:], {"w": weight}
    )
    with in_place(main, tmp_path) as weights:
        session = shared.session(weights)
        x = np.ones(1000, np.float32)
        assert session.run(None, {"x": x})[0][0] == 3
        assert session.run(None, {"x": x, "w": x})[0][0] == 2


def test_options_and_providers_are_checked_before_a_conversion_too(tmp_path: Path) -> None:
    with in_place(convolution(tmp_path), tmp_path, threads=1) as weights:
        with pytest.raises(NotSupportedError, match="CUDAExecutionProvider would copy every weight"):
            shared.session(weights, providers=["CUDAExecutionProvider"])
        options = onnxruntime.SessionOptions()
        shared.session(weights, session_options=options)
        assert options.intra_op_num_threads == 1
        with pytest.raises(CallerError, match="carry the weights of"):
            shared.session(weights, session_options=options)


def test_the_session_reads_the_mapping_itself(tmp_path: Path) -> None:
    """One float changed in the file changes the answer of a session that exists: nothing was copied."""
    main = save(
        tmp_path / "m.onnx",
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", TensorProto.FLOAT, [1000])],
        [value("y", TensorProto.FLOAT, [1000])],
        {"w": np.zeros(1000, np.float32)},
    )
    with attach(main) as weights:
        session = shared.session(weights)
        at = weights.view.data_start + weights.layout.tensors["w"].offset
        with main.with_suffix(".image").open("r+b") as file:
            os.pwrite(file.fileno(), np.float32(7).tobytes(), at)
        (answer,) = session.run(None, {"x": np.zeros(1000, np.float32)})
    assert answer[0] == 7


def test_a_session_outlives_the_weights_it_was_made_from(tmp_path: Path) -> None:
    main = convolution(tmp_path)
    released = []
    plan = OnnxConverter().plan(Artifact("onnx", (main,)))
    weights = Weights.map_file(write_image(plan, tmp_path / "image"), lambda: released.append(True))
    session = shared.session(weights)
    weights.close()
    (answer,) = session.run(None, feeds(main))
    np.testing.assert_array_equal(answer, own_answer(main))
    assert not released
    del session, weights
    gc.collect()
    assert released


@pytest.mark.parametrize(
    ("dtype", "numpy_name"), [(TensorProto.BFLOAT16, "bfloat16"), (TensorProto.FLOAT8E4M3FN, "float8_e4m3fn")]
)
def test_dtypes_numpy_lacks_are_fed_by_their_bits(tmp_path: Path, dtype: int, numpy_name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.linspace(-4, 4, 2048).astype(getattr(ml_dtypes, numpy_name))
    tensor = helper.make_tensor("w", dtype, [2048], array.tobytes(), raw=True)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)],
        "g",
        [],
        [value("y", TensorProto.FLOAT, [2048])],
        [tensor],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    with attach(tmp_path / "m.onnx", optimize="none") as weights:
        (answer,) = shared.session(weights).run(None, {})
    np.testing.assert_array_equal(answer, array.astype(np.float32))
    with in_place(tmp_path / "m.onnx", tmp_path, optimize="none") as weights:
        (answer,) = shared.session(weights).run(None, {})
    np.testing.assert_array_equal(answer, array.astype(np.float32))


def test_an_initializer_that_is_not_fed_is_an_error_and_never_zeros(tmp_path: Path) -> None:
    with attach(convolution(tmp_path)) as weights:
        program = weights.program()
    assert program is not None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/dev")
    with pytest.raises(Exception, match="/dev/null"):
        onnxruntime.InferenceSession(program.body, options, providers=["CPUExecutionProvider"])


def test_another_release_is_refused_by_name_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_with = onnxruntime.__version__
    with attach(convolution(tmp_path)) as weights:
        monkeypatch.setattr(onnxruntime, "__version__", "9.9.9")
        with pytest.raises(NotSupportedError, match=rf"{made_with}.*9\.9\.9.*onnxruntime=={made_with}"):
            shared.session(weights)


def test_another_processor_is_refused_by_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with attach(convolution(tmp_path)) as weights:
        monkeypatch.setattr(_onnxruntime_options, "cpu_features", lambda: ("m68k", "avx1024"))
        with pytest.raises(NotSupportedError, match=r"this one has avx1024, m68k.*optimize: none"):
            shared.session(weights)


def test_an_unoptimized_image_runs_on_any_processor_and_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = convolution(tmp_path)
    with attach(main, optimize="none") as weights:
        monkeypatch.setattr(_onnxruntime_options, "cpu_features", lambda: ("m68k",))
        (answer,) = shared.session(weights).run(None, feeds(main))
    np.testing.assert_array_equal(answer, own_answer(main, level="ORT_DISABLE_ALL"))


def test_weights_without_a_graph_are_refused(tmp_path: Path) -> None:
    plan = plan_image([SourceTensor("w", "F32", (4,))])
    with (
        Weights.map_file(write_image(plan, tmp_path / "image")) as weights,
        pytest.raises(NotSupportedError, match="carries no program"),
    ):
        shared.session(weights)


def test_a_session_writes_no_file(tmp_path: Path) -> None:
    """In a process that may not create files at all, a session is made and runs."""
    main = convolution(tmp_path)
    attach(main).close()
    code = (
        "import resource, sys, numpy as np\n"
        "from trims_client.weights import Weights\n"
        "from trims_client.frameworks import onnxruntime\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "session = onnxruntime.session(Weights.map_file(sys.argv[1]))\n"
        "print(session.run(None, {'x': np.ones((1, 3, 9, 9), np.float32)})[0].shape)\n"
    )
    image = os.fspath(main.with_suffix(".image"))
    done = subprocess.run(
        [sys.executable, "-c", code, image],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.split() == ["(1,", "48)"]
