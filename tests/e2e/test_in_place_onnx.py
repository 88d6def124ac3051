"""ONNX models before their first conversion: served from their own files, with the answers that ONNX Runtime gives."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from looking import leases, wait_until  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_files import located  # noqa: E402
from onnx_models import attention, convolution, feeds, own_answer, save, value  # noqa: E402
from trims_client import connect  # noqa: E402

import trims  # noqa: E402
from trims.core.errors import ArtifactError, BrokenWeightsError  # noqa: E402
from trims.daemon.check import check_store  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_client import Session
    from trims_client.weights import Weights

    from trims.daemon.main import Daemon


pytestmark = pytest.mark.usefixtures("own_files")


@pytest.fixture
def daemon(serve: Callable[..., Daemon]) -> Daemon:
    return serve(trust="identity")


def external(main: Path) -> Path:
    """Write the same model with all weights in a file beside it, and return its path."""
    onnx.save(onnx.load(main), main, save_as_external_data=True, location="weights.bin", size_threshold=0)
    main.with_name("weights.bin").chmod(0o644)
    return main


def kind_of(weights: Weights) -> str | None:
    program = weights.program()
    return None if program is None else program.kind


def test_a_check_leaves_a_model_without_data_files_in_service(daemon: Daemon, session: Session, folder: Path) -> None:
    main, shape = folder / "m.onnx", [1, 4]
    inline = helper.make_tensor("w", TensorProto.FLOAT, shape, [1, 2, 3, 4])
    node = helper.make_node("Add", ["x", "w"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [inline])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), main)
    with session.open_file(main) as weights:
        assert (weights.place, list(weights)) == ("file", [])
        assert check_store(daemon.store, verify=True).findings == []
        with session.open_file(main) as again:
            assert (again.place, again.warm) == ("file", True)


@pytest.mark.parametrize("make", [convolution, attention, lambda f: external(convolution(f))])
def test_the_first_caller_has_its_answers_before_a_conversion(
    make: Callable[[Path], Path], daemon: Daemon, session: Session, folder: Path
) -> None:
    main = make(folder)
    with session.open_file(main) as weights:
        assert (weights.place, weights.warm, weights.shared) == ("file", False, True)
        runtime = trims.onnxruntime.session(weights)
        (answer,) = runtime.run(None, feeds(main))
        assert (runtime.program.kind, kind_of(weights)) == ("onnx-original", "onnx-original")
    np.testing.assert_array_equal(answer, own_answer(main))
    assert daemon.store.counters["fills.cpu"] == 0, "nothing was converted for it"


@pytest.mark.parametrize("make", [convolution, lambda f: external(convolution(f))])
def test_initializers_are_read_by_their_names(make: Callable[[Path], Path], session: Session, folder: Path) -> None:
    main = make(folder)
    wanted = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(main).graph.initializer}
    with session.open_file(main) as weights:
        assert weights.place == "file"
        assert list(weights) == list(wanted)
        for name, array in wanted.items():
            np.testing.assert_array_equal(weights[name], array)
            assert weights[name].flags.aligned


def test_use_has_it_converted_behind_its_readers(daemon: Daemon, session: Session, folder: Path) -> None:
    main = convolution(folder)
    with session.open_file(main) as first, session.open_file(main) as second:
        before = trims.onnxruntime.session(first)

        def is_converted() -> bool:
            with session.open_file(main) as weights:
                (answer,) = trims.onnxruntime.session(weights).run(None, feeds(main))
                np.testing.assert_array_equal(answer, own_answer(main))
                return (weights.place, kind_of(weights)) == ("cpu", "onnxruntime")

        wait_until(is_converted, "its use has not had it converted")
        assert {first.place, second.place} == {"file"}
        np.testing.assert_array_equal(before.run(None, feeds(main))[0], own_answer(main))


def test_a_named_place_is_where_it_is_opened(daemon: Daemon, session: Session, folder: Path) -> None:
    main = convolution(folder)
    for place, kind in (("file", "onnx-original"), ("cpu", "onnxruntime")):
        with session.open_file(main, place=place) as weights:
            assert (weights.place, kind_of(weights)) == (place, kind)
            (answer,) = trims.onnxruntime.session(weights).run(None, feeds(main))
            np.testing.assert_array_equal(answer, own_answer(main))


def test_the_manifests_options_hold_before_a_conversion(daemon: Daemon, session: Session, folder: Path) -> None:
    main = convolution(folder)
    options = {"optimize": "none", "prepack": True, "threads": 1}
    daemon.registry.put({"name": "m", "artifact": {"path": str(main), "options": options}}, "")
    with session.open("m") as weights:
        assert weights.place == "file"
        mine = onnxruntime.SessionOptions()
        (answer,) = trims.onnxruntime.session(weights, session_options=mine).run(None, feeds(main))
    assert mine.intra_op_num_threads == 1
    np.testing.assert_array_equal(answer, own_answer(main, level="ORT_DISABLE_ALL", prepack=True))


def typed(folder: Path) -> Path:
    """A model that adds 2, stored as a typed number: nothing of it is dense in the file."""
    two = helper.make_tensor("two", TensorProto.FLOAT, [1], [2.0])
    shapes = [value(name, TensorProto.FLOAT, [3]) for name in ("x", "y")]
    main = save(folder / "typed.onnx", [helper.make_node("Add", ["x", "two"], ["y"])], shapes[:1], shapes[1:], {})
    model = onnx.load(main)
    model.graph.initializer.append(two)
    onnx.save(model, main)
    return main


def test_a_model_without_dense_weights_waits_for_no_conversion(daemon: Daemon, session: Session, folder: Path) -> None:
    for _ in range(2):
        with session.open_file(typed(folder)) as weights:
            assert weights.place == "file"
            (answer,) = trims.onnxruntime.session(weights).run(None, {"x": np.ones(3, np.float32)})
            assert answer.tolist() == [3, 3, 3]


def test_isolated_processes_compute_over_the_same_file(daemon: Daemon, folder: Path) -> None:
    main = external(convolution(folder))
    np.save(folder / "x.npy", feeds(main)["x"])
    program = (
        "import sys, numpy, trims; w = trims.open_file(sys.argv[1]); s = trims.onnxruntime.session(w);"
        "print(w.place, s.run(None, {'x': numpy.load(sys.argv[2])})[0].tobytes().hex()); w.close()"
    )
    environment = {**os.environ, "TRIMS_RUNTIME_DIR": str(daemon.config.runtime_dir)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(main), str(folder / "x.npy")],
        capture_output=True, text=True, check=True, timeout=300, env=environment,
    )  # fmt: skip
    assert done.stdout.split() == ["file", own_answer(main).tobytes().hex()]
    wait_until(lambda: leases(daemon) == 0, "the lease outlives its process")


def test_what_needs_a_conversion_is_converted_and_the_log_says_why(
    daemon: Daemon, session: Session, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trims.store.resolve.in_place")
    shapes = [value(name, TensorProto.FLOAT, [64]) for name in ("x", "y")]
    weight = numpy_helper.from_array(np.arange(64, dtype=np.float32), "w")
    nodes = [helper.make_node("Constant", [], ["c"], value=weight), helper.make_node("Add", ["x", "c"], ["y"])]
    main = save(folder / "m.onnx", nodes, shapes[:1], shapes[1:], {})
    model = onnx.load(main)
    onnx.save(model, main, save_as_external_data=True, location="w.bin", size_threshold=0, convert_attribute=True)
    (folder / "w.bin").chmod(0o644)
    with session.open_file(main) as weights:
        assert weights.place == "cpu"
        (answer,) = trims.onnxruntime.session(weights).run(None, {"x": np.zeros(64, np.float32)})
    assert answer.tolist() == list(range(64))
    (told,) = [record.message for record in caplog.records if "is converted" in record.message]
    assert "external data outside its graph's own initializers" in told


@pytest.mark.parametrize("how", ["cut", "external data cut", "external data gone", "outside", "noise"])
def test_a_broken_model_is_refused_with_its_name(how: str, session: Session, folder: Path) -> None:
    main: Any = external(convolution(folder)) if how.startswith("external") else convolution(folder)
    if how == "cut":
        main.write_bytes(main.read_bytes()[:-1000])
    elif how == "external data cut":
        os.truncate(folder / "weights.bin", 100)
    elif how == "external data gone":
        (folder / "weights.bin").unlink()
    elif how == "outside":
        main.write_bytes(located("../../etc/passwd"))
    else:
        main.write_bytes(b"\x3a\x05noise")
    with pytest.raises((ArtifactError, BrokenWeightsError), match=r"conv\.onnx|weights\.bin"):
        session.open_file(main)


def test_a_replaced_model_is_new_for_the_next_open(daemon: Daemon, folder: Path) -> None:
    main = convolution(folder)
    with connect(daemon.config.runtime_dir) as session, session.open_file(main) as before:
        old = own_answer(main)
        (folder / "other").mkdir()
        model = onnx.load(main)
        model.graph.initializer[3].raw_data = np.full(48, 9, np.float32).tobytes()
        onnx.save(model, folder / "other" / "conv.onnx")
        os.replace(folder / "other" / "conv.onnx", main)

        def is_new() -> bool:
            with session.open_file(main) as weights:
                (answer,) = trims.onnxruntime.session(weights).run(None, feeds(main))
                return bool(np.array_equal(answer, own_answer(main)))

        wait_until(is_new, "the old file is served")
        (answer,) = trims.onnxruntime.session(before).run(None, feeds(main))
        np.testing.assert_array_equal(answer, old)
