"""A look into artifacts of each format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mxnet_files
import numpy as np
import pytest

from trims.control.look import Tensors, look
from trims.core.errors import ArtifactError, NotSupportedError
from trims.manifests.serving import NO_SIGNATURE, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_graph_states_inputs_and_outputs_and_the_framework(folder: Path) -> None:
    from onnx_files import linear

    found = look(linear(folder), {})
    assert (found.format, found.framework, found.why_not) == ("onnx", "onnxruntime", "")
    assert found.signature.inputs == (TensorType("x", "FP32", (-1, 32)),)
    assert found.tensors == Tensors(2, (32 * 64 + 64) * 4, {"F32": 2})


def test_tensors_are_listed_of_formats_that_have_no_graph(folder: Path, checkpoint: Callable[..., Path]) -> None:
    np.savez(folder / "a.npz", w=np.ones((2, 3), "f4"), n=np.ones(1, "i8"))
    found = look(folder / "a.npz", {})
    assert (found.format, found.framework, found.signature) == ("npz", "", NO_SIGNATURE)
    assert found.tensors == Tensors(2, 32, {"F32": 1, "I64": 1})
    assert look(checkpoint("m"), {}).format == "safetensors"


def test_files_beside_the_main_one_are_named(folder: Path) -> None:
    main = mxnet_files.save(folder, {"arg:w": mxnet_files.array("F32", (2, 3))})
    found = look(main, {})
    assert (found.format, found.framework, len(found.files)) == ("mxnet", "mxnet", 2)


def test_a_format_that_lists_nothing_before_it_is_converted_says_so(checkpoint: Callable[..., Path]) -> None:
    found = look(checkpoint("m"), {"module": "trims.testing.torch_modules:conv_net"}, "safetensors")
    assert (found.tensors is None) == bool(found.why_not)


def test_what_no_converter_takes_is_refused(folder: Path) -> None:
    (folder / "notes.txt").write_text("nothing")
    with pytest.raises(ArtifactError, match="claimed by no converter"):
        look(folder / "notes.txt", {})
    with pytest.raises(NotSupportedError, match="there is no format 'x'"):
        look(folder / "notes.txt", {}, "x")
