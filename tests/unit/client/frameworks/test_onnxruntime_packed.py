"""Sessions go over to packed weights behind their first answer, and say so."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from onnx_models import attention, convolution, feeds, own_answer, write_image  # noqa: E402
from trims_client.frameworks import onnxruntime as shared  # noqa: E402
from trims_client.frameworks._onnxruntime_packed import Packing, file_behind  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.formats.base import Artifact  # noqa: E402
from trims.formats.onnx.converter import OnnxConverter  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def attach(main: Path, prepack: Any = "shared") -> Weights:
    plan = OnnxConverter().plan(Artifact("onnx", (main,), {"prepack": prepack}))
    return Weights.map_file(write_image(plan, main.with_suffix(".image")))


@pytest.mark.parametrize("make", [attention, convolution])
def test_the_first_answer_is_of_plain_weights_and_later_ones_of_packed(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    main = make(tmp_path)
    with attach(main) as weights:
        session = shared.session(weights)
        assert session.stage == "first"
        (first,) = session.run(None, feeds(main))
        assert session.pack() == "packed"
        (second,) = session.run(None, feeds(main))
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds(main).items()}
        (third,) = session.run_with_ort_values(None, values)
    np.testing.assert_array_equal(first, own_answer(main))
    np.testing.assert_array_equal(second, own_answer(main, prepack=True))
    np.testing.assert_array_equal(third.numpy(), second)
    assert session.why_plain is None


def test_a_session_may_be_packed_before_its_first_run(tmp_path: Path) -> None:
    main = attention(tmp_path)
    with attach(main) as weights:
        session = shared.session(weights)
        assert session.pack() == session.pack() == "packed"
        np.testing.assert_array_equal(session.run(None, feeds(main))[0], own_answer(main, prepack=True))


def test_runs_in_many_threads_are_answered_while_weights_are_packed(tmp_path: Path) -> None:
    main = attention(tmp_path)
    answers: list[Any] = []
    with attach(main) as weights:
        session = shared.session(weights)

        def work() -> None:
            answers.extend(session.run(None, feeds(main))[0] for _ in range(50))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.pack() == "packed"
    assert len(answers) == 200
    for answer in answers:
        np.testing.assert_allclose(answer, answers[0], rtol=1e-5, atol=1e-5)


def test_a_session_of_an_image_without_packed_weights_stays_plain(tmp_path: Path) -> None:
    main = attention(tmp_path)
    with attach(main, prepack=False) as weights:
        session = shared.session(weights)
        assert (session.stage, session.pack(), session.why_plain) == ("plain", "plain", None)
        np.testing.assert_array_equal(session.run(None, feeds(main))[0], own_answer(main))


def test_bindings_stay_with_the_first_session(tmp_path: Path) -> None:
    main = attention(tmp_path)
    with attach(main) as weights:
        session = shared.session(weights)
        binding = session.io_binding()
        session.pack()
        for name, array in feeds(main).items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], own_answer(main))


def test_options_are_given_for_each_of_the_two_sessions(tmp_path: Path) -> None:
    main = attention(tmp_path)
    with attach(main) as weights:
        session = shared.session(weights, session_options=onnxruntime.SessionOptions())
        assert (session.stage, session.why_plain) == ("plain", "session_options were given without packed_options")
        first, second = onnxruntime.SessionOptions(), onnxruntime.SessionOptions()
        second.intra_op_num_threads = 1
        session = shared.session(weights, session_options=first, packed_options=second)
        assert session.pack() == "packed"
        assert session._packing is not None
        assert session._packing.session.get_session_options().intra_op_num_threads == 1


def test_both_sessions_are_made_with_the_providers_that_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    real = onnxruntime.InferenceSession.__init__

    def note(self: Any, *arguments: Any, **given: Any) -> None:
        made.append(given["providers"])
        real(self, *arguments, **given)

    with attach(attention(tmp_path)) as weights:
        monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", note)
        wanted = [("CPUExecutionProvider", {})]
        assert shared.session(weights, providers=wanted).pack() == "packed"
    assert made == [wanted, wanted]


def test_a_process_that_sees_no_file_of_the_image_packs_for_itself_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main = attention(tmp_path)
    with attach(main) as weights:
        assert file_behind(weights) == str(main.with_suffix(".image"))
        main.with_suffix(".image").unlink()
        session = shared.session(weights)
        assert session.stage == "first"
        np.testing.assert_array_equal(session.run(None, feeds(main))[0], own_answer(main))
        assert session.pack() == "private"
    np.testing.assert_array_equal(session.run(None, feeds(main))[0], own_answer(main, prepack=True))
    assert session.why_private is not None
    assert "no file that this process sees has the image" in session.why_private
    assert session.why_plain is None
    assert "this process packs its weights for itself, about" in caplog.text


def test_weights_that_a_process_packs_for_itself_follow_the_options_for_packed_ones(tmp_path: Path) -> None:
    main = attention(tmp_path)
    with attach(main) as weights:
        main.with_suffix(".image").unlink()
        first, second = onnxruntime.SessionOptions(), onnxruntime.SessionOptions()
        second.intra_op_num_threads = 1
        session = shared.session(weights, session_options=first, packed_options=second)
        assert session.pack() == "private"
        assert session._packing is not None
        assert session._packing.session.get_session_options().intra_op_num_threads == 1


def test_another_file_at_the_same_path_is_not_taken(tmp_path: Path) -> None:
    path = attention(tmp_path).with_suffix(".image")
    with attach(path.with_suffix(".onnx")) as weights:
        path.rename(tmp_path / "moved")
        path.write_bytes(bytes(100))
        assert file_behind(weights) == str(tmp_path / "moved")
        (tmp_path / "moved").unlink()
        (tmp_path / "moved").write_bytes(bytes(weights.nbytes))
        assert file_behind(weights) is None


def test_a_session_that_cannot_be_packed_goes_on_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    main = attention(tmp_path)
    with attach(main) as weights:
        session = shared.session(weights)
        main.with_suffix(".image").unlink()
        session.run(None, feeds(main))
        assert session.pack() == "plain"
        assert session.why_plain is not None
        np.testing.assert_array_equal(session.run(None, feeds(main))[0], own_answer(main))
    assert "its packed weights cannot be used, runs stay slower" in caplog.text


def test_a_session_is_made_once_however_many_ask() -> None:
    made: list[int] = []
    packing = Packing("m", lambda: made.append(1) or object())
    threads = [threading.Thread(target=packing.begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    packing.wait()
    assert made == [1]
    assert packing.stage == "packed"
