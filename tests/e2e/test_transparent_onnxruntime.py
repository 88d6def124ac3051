"""`onnxruntime.InferenceSession` of a file, over shared memory: descriptions and answers are the original's."""

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import wait_until
from onnx_models import attention, convolution, feeds, helper, onnx, onnxruntime, save, value
from transparently import counted, installed  # noqa: F401 - a fixture
from trims_client import transparent
from trims_client.frameworks import _onnxruntime_packed
from trims_client.transparent import file_bytes
from trims_client.transparent import onnxruntime as adapter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("daemon", "installed", "forked_starts")
ORIGINAL = onnxruntime.InferenceSession.__init__
CPU = ["CPUExecutionProvider"]
FLOAT = onnx.TensorProto.FLOAT
_SHOWN_OPTIONS = (*adapter._KEPT_OPTIONS, "graph_optimization_level", "enable_profiling", "optimized_model_filepath")
_META = ("custom_metadata_map", "description", "domain", "graph_description", "graph_name", "producer_name", "version")


def dense(folder: Path) -> Path:
    """Products of matrices, which ONNX Runtime packs, with few rows and with many; and what a model says of itself."""
    random = np.random.default_rng(7)
    weights = {name: (random.standard_normal((256, 256)) / 16).astype(np.float32) for name in ("a", "b", "c")}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["i"]),
        helper.make_node("MatMul", ["i", "b"], ["j"]),
        helper.make_node("Gemm", ["j", "c"], ["y"]),
    ]
    x, y = value("x", FLOAT, ["rows", 256]), value("y", FLOAT, ["rows", 256])
    path = save(folder / "dense.onnx", nodes, [x], [y], weights)
    model = onnx.load(path)
    model.producer_name, model.domain, model.model_version, model.doc_string = "tests", "trims", 3, "about it"
    model.graph.doc_string = "about the graph"
    helper.set_model_props(model, {"key": "word"})
    onnx.save(model, path)
    return path


def fed(path: Path) -> dict[str, Any]:
    if path.stem != "dense":
        return feeds(path)
    return {"x": np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32)}


def alone(path: Any, *args: Any, **kwargs: Any) -> Any:
    """A session that the original makes."""
    transparent.uninstall()
    try:
        return onnxruntime.InferenceSession(path, *args, **kwargs)
    finally:
        transparent.install()


def described(session: Any) -> list[Any]:
    lists = (session.get_inputs(), session.get_outputs(), session.get_overridable_initializers())
    options, meta = session.get_session_options(), session.get_modelmeta()
    return [
        *([(each.name, each.type, each.shape) for each in found] for found in lists),
        [getattr(meta, name) for name in _META],
        [getattr(options, name) for name in _SHOWN_OPTIONS],
        session.get_providers(),
        session.get_provider_options(),
        sorted(name for name in vars(session) if not name.startswith(("_trims", "_sess"))),
    ]


def no_options() -> Any:
    return None


def one_thread() -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.enable_mem_pattern, options.logid = 1, False, "named"
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return options


@pytest.mark.parametrize("make", [convolution, attention, dense])
@pytest.mark.parametrize("options", [no_options, one_thread])
def test_a_session_is_described_and_answers_as_the_originals(
    make: Callable[[Path], Path], options: Callable[[], Any], tmp_path: Path
) -> None:
    path = make(tmp_path)
    theirs, ours = alone(path, options()), onnxruntime.InferenceSession(path, options())
    assert counted() == (1, [])
    assert described(ours) == described(theirs)
    for _ in range(2):
        (one,), (other,) = ours.run(None, fed(path)), theirs.run(None, fed(path))
        assert (one.tobytes(), one.dtype, one.shape) == (other.tobytes(), other.dtype, other.shape)
    assert described(ours) == described(theirs)


def run_plain(session: Any, x: Any) -> Any:
    return session.run(["y"], {"x": x})[0]


def run_bound(session: Any, x: Any) -> Any:
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()[0]


def run_values(session: Any, x: Any) -> Any:
    return session.run_with_ort_values(["y"], {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)})[0].numpy()


def run_later(session: Any, x: Any) -> Any:
    answered, found = threading.Event(), []
    session.run_async(["y"], {"x": x}, lambda answer, *_: (found.append(answer), answered.set()), None)
    assert answered.wait(60)
    return found[0][0]


@pytest.mark.parametrize("run", [run_plain, run_bound, run_values, run_later])
def test_each_way_to_run_is_the_first_and_answers(run: Callable[[Any, Any], Any], tmp_path: Path) -> None:
    path = dense(tmp_path)
    x = fed(path)["x"]
    wanted = run(alone(path), x)
    assert run(onnxruntime.InferenceSession(path, providers=CPU), x).tobytes() == wanted.tobytes()
    assert counted() == (1, [])


def test_providers_that_are_set_later_are_of_the_file_itself(tmp_path: Path) -> None:
    path = dense(tmp_path)
    session = onnxruntime.InferenceSession(str(path))
    session.set_providers(CPU)
    assert session.run(None, fed(path))[0].tobytes() == alone(path).run(None, fed(path))[0].tobytes()


def test_an_initializer_that_may_be_fed_stays_one(tmp_path: Path) -> None:
    path = dense(tmp_path)
    model = onnx.load(path)
    model.graph.input.append(value("b", FLOAT, [256, 256]))
    onnx.save(model, path)
    theirs, ours = alone(path), onnxruntime.InferenceSession(path)
    assert described(ours) == described(theirs)
    for more in ({}, {"b": np.ones((256, 256), np.float32)}):
        assert ours.run(None, fed(path) | more)[0].tobytes() == theirs.run(None, fed(path) | more)[0].tobytes()


def of_bytes(path: Path) -> Any:
    return onnxruntime.InferenceSession(path.read_bytes())


def with_level(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options)


def with_an_entry(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(path, options)


def with_a_dimension(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("rows", 3)
    return onnxruntime.InferenceSession(path, options)


def with_options_of_another_type(path: Path) -> Any:
    found = []
    for make in (alone, onnxruntime.InferenceSession):
        with pytest.raises(TypeError) as error:
            make(path, 3)
        found.append(str(error.value).partition("Invoked with")[0])
    assert found[0] == found[1]
    return alone(path)


def without_an_optimizer(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, disabled_optimizers=["ConstantFolding"])


def with_options_of_before(path: Path) -> Any:
    transparent.uninstall()
    options = onnxruntime.SessionOptions()
    transparent.install()
    return onnxruntime.InferenceSession(path, options)


def of_a_class_with_attributes(path: Path) -> Any:
    class Own(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            self.own = "kept"
            super().__init__(path)

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    made = Own(path)
    assert made.own == "kept"
    return made


ASIDE = [
    (of_bytes, "not a path of an ONNX model"),
    (with_level, "options that need the model's own graph"),
    (with_an_entry, "options that the adapter does not know"),
    (with_a_dimension, "options that the adapter does not know"),
    (with_options_of_before, "options that the adapter does not know"),
    (with_options_of_another_type, "options that the adapter does not know"),
    (without_an_optimizer, "an argument that the adapter does not know"),
    (of_a_class_with_attributes, "a class with attributes of its own"),
]


@pytest.mark.parametrize(("make", "reason"), ASIDE)
def test_what_shared_weights_cannot_do_the_original_does(
    make: Callable[[Path], Any], reason: str, tmp_path: Path
) -> None:
    session = make(path := dense(tmp_path))
    assert session.run(None, fed(path))[0].shape == (3, 256)
    assert counted() == (0, [reason])


def test_a_subclass_gets_shared_weights(tmp_path: Path) -> None:
    class Own(onnxruntime.InferenceSession):  # type: ignore[misc]
        def run(self, *args: Any) -> Any:
            return ["own", *super().run(*args)]

    path = dense(tmp_path)
    session = Own(path)
    assert session.run(None, fed(path))[0] == "own"
    with pytest.raises(AttributeError, match="'Own' object has no attribute 'other'"):
        session.other  # noqa: B018 - it raises
    assert counted() == (1, [])


@pytest.mark.parametrize(
    ("ending", "expected"), [(".data", (1, [])), ("_data", (1, [])), ("-w", (0, ["artifact_changed"]))]
)
def test_external_data_beside_a_model_is_shared_by_its_usual_names(
    ending: str, expected: tuple[int, list[str]], tmp_path: Path
) -> None:
    path = dense(tmp_path)
    wanted = alone(path).run(None, fed(path))[0]
    onnx.save(onnx.load(path), path, save_as_external_data=True, location=path.name + ending, size_threshold=1024)
    assert onnxruntime.InferenceSession(path).run(None, fed(path))[0].tobytes() == wanted.tobytes()
    assert counted() == expected


def test_a_file_that_changes_is_another_model_for_later_sessions_only(tmp_path: Path) -> None:
    path = dense(tmp_path)
    before = onnxruntime.InferenceSession(path)
    wanted = alone(path).run(None, fed(path))[0]
    model = onnx.load(path)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((256, 256), np.float32), "a"))
    onnx.save(model, path)
    assert before.run(None, fed(path))[0].tobytes() == wanted.tobytes()
    assert not onnxruntime.InferenceSession(path).run(None, fed(path))[0].any()
    path.unlink()
    assert before.run(None, fed(path))[0].tobytes() == wanted.tobytes()
    assert counted() == (2, [])


def test_errors_are_the_originals(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x08\x08" + b"x" * 5000)
    for path in (broken, tmp_path / "missing.onnx", 7):
        with pytest.raises(Exception) as theirs:
            alone(path)
        with pytest.raises(type(theirs.value)) as ours:
            onnxruntime.InferenceSession(path)
        assert str(ours.value) == str(theirs.value)
    session = onnxruntime.InferenceSession(path := dense(tmp_path))
    with pytest.raises(ValueError, match="Required inputs"):
        session.run(None, {})
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument):
        session.run(None, {"x": np.zeros((1, 2), np.float32)})
    assert session.run(None, fed(path))


def test_a_model_that_onnx_runtime_refuses_is_converted_once(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "unknown.onnx"
    node = helper.make_node("Nope", ["x", "w"], ["y"], domain="foo")
    save(path, [node], [value("x", FLOAT, [1])], [value("y", FLOAT, [1])], {"w": np.ones(5000, np.float32)})
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("foo", 1))
    onnx.save(model, path)
    for _ in range(3):
        with pytest.raises(Exception, match="Nope"):
            onnxruntime.InferenceSession(path)
    assert counted() == (0, ["bad_artifact"])
    name = f"file:onnx,prepack=shared,onnxruntime=={onnxruntime.__version__}:{file_bytes.identity_of(str(path))}:{path}"
    assert list(daemon.store._opens._refused) == [name]


def test_threads_that_run_a_new_session_at_once_get_one_answer(tmp_path: Path) -> None:
    path = dense(tmp_path)
    wanted, session, found = alone(path).run(None, fed(path))[0], onnxruntime.InferenceSession(path), []
    threads = [threading.Thread(target=lambda: found.append(session.run(None, fed(path))[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [each.tobytes() for each in found] == [wanted.tobytes()] * 4


def test_a_fork_of_a_program_with_a_session_answers(tmp_path: Path) -> None:
    path = dense(tmp_path)
    wanted = alone(path, one_thread()).run(None, fed(path))[0]
    session = onnxruntime.InferenceSession(path, one_thread())
    session._trims_packing.wait()
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, session.run(None, fed(path))[0].tobytes()[:1000])
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert os.read(reader, 1000) == wanted.tobytes()[:1000]
    os.close(reader)
    os.close(writer)


def test_a_fork_while_the_session_is_made_answers_by_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, may_go = dense(tmp_path), threading.Event()
    wanted = alone(path, one_thread()).run(None, fed(path))[0]
    work = _onnxruntime_packed.Packing._work
    monkeypatch.setattr(_onnxruntime_packed.Packing, "_work", lambda packing: (may_go.wait(60), work(packing)))
    session = onnxruntime.InferenceSession(path, one_thread())
    if (pid := os.fork()) == 0:
        os._exit(session.run(None, fed(path))[0].tobytes() != wanted.tobytes())
    may_go.set()
    assert os.waitpid(pid, 0)[1] == 0
    assert session.run(None, fed(path))[0].tobytes() == wanted.tobytes()


def test_packed_weights_that_cannot_be_used_leave_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(packing: Any) -> None:
        packing._make = None
        packing.why_plain = "broken"

    path = dense(tmp_path)
    wanted = alone(path).run(None, fed(path))[0]
    monkeypatch.setattr(_onnxruntime_packed.Packing, "begin", fail)
    assert onnxruntime.InferenceSession(path).run(None, fed(path))[0].tobytes() == wanted.tobytes()
    assert counted() == (1, ["its packed weights could not be used"])


def test_without_a_daemon_the_original_loads(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", str(folder / "nobody"))
    assert onnxruntime.InferenceSession(path := dense(tmp_path)).run(None, fed(path))
    assert counted() == (0, ["daemon_away"])


def test_a_release_that_is_not_known_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transparent.uninstall()
    monkeypatch.setattr(onnxruntime, "__version__", "2.0.0")
    assert transparent.install()
    assert onnxruntime.InferenceSession.__init__ is ORIGINAL
    assert onnxruntime.InferenceSession(path := dense(tmp_path)).run(None, fed(path))
    assert counted() == (0, ["onnxruntime 2.0.0 is not known"])


def test_sessions_outlive_the_loaders_and_leases_end_with_them(daemon: Daemon, tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(path := dense(tmp_path))
    transparent.uninstall()
    assert onnxruntime.InferenceSession.__init__ is ORIGINAL
    assert session.run(None, fed(path))
    assert sum(each.leases for each in daemon.store.read.replicas()) == 1
    del session
    gc.collect()
    wait_until(lambda: not any(each.leases for each in daemon.store.read.replicas()), "the lease has ended")
