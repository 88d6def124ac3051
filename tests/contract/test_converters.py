"""Promises of every converter, whatever the format.

To add one: write a function that makes its artifact, and a row in `CASES`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trims_client.weights import Weights

from trims.core.errors import ArtifactError, TrimsError
from trims.formats import plugins
from trims.formats.base import Artifact, Converter
from trims.formats.conversion.conversion import converter, detect, recipe, start_conversion
from trims.formats.conversion.environments import Environment
from trims.formats.in_place import least_image_bytes
from trims.testing.converters import LIMITS, convert

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("forked_starts")
WEIGHT = np.arange(32 * 64, dtype="<f4").reshape(32, 64)


def safetensors_file(folder: Path) -> Path:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [32, 64], "data_offsets": [0, WEIGHT.nbytes]}}).encode()
    (folder / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + WEIGHT.tobytes())
    return folder / "m.safetensors"


def safetensors_shards(folder: Path) -> Path:
    safetensors_file(folder)
    index = folder / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"weight": "m.safetensors"}}))
    return index


def npz_file(folder: Path) -> Path:
    np.savez_compressed(folder / "m.npz", weight=WEIGHT)
    return folder / "m.npz"


def torch_file(folder: Path) -> Path:
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.from_numpy(WEIGHT.copy())}, folder / "m.pt")
    return folder / "m.pt"


def npy_file(folder: Path) -> Path:
    np.save(folder / "m.npy", WEIGHT)
    return folder / "m.npy"


def npy_column_major(folder: Path) -> Path:
    np.save(folder / "m.npy", np.asfortranarray(WEIGHT).astype(WEIGHT.dtype.newbyteorder(">")))
    return folder / "m.npy"


def onnx_file(folder: Path) -> Path:
    if importlib.util.find_spec("onnxruntime") is None:  # not imported: it keeps descriptors for good
        pytest.skip("onnxruntime is not installed")
    onnx = pytest.importorskip("onnx")
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "g",
        [value("x", kind, ["N", 32])],
        [value("y", kind, ["N", 64])],
        [onnx.numpy_helper.from_array(WEIGHT, "weight")],
    )
    opset = [onnx.helper.make_opsetid("", 19)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "m.onnx")
    return folder / "m.onnx"


def mxnet_files(folder: Path) -> Path:
    array = struct.pack("<Iiiqqiii", 0xF993FAC9, 0, 2, 32, 64, 1, 0, 0) + WEIGHT.tobytes()
    name = b"arg:weight"
    names = struct.pack("<QQ", 1, len(name)) + name
    (folder / "m-0000.params").write_bytes(struct.pack("<QQQ", 0x112, 0, 1) + array + names)
    nodes = [{"op": "null", "name": "data"}, {"op": "null", "name": "weight"}, {"op": "dot", "name": "y"}]
    (folder / "m-symbol.json").write_text(json.dumps({"nodes": nodes, "arg_nodes": [0, 1], "heads": [[2, 0, 0]]}))
    return folder / "m-symbol.json"


def transformers_folder(folder: Path) -> Path:
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:  # not imported: the conversion does it in a process of its own
            pytest.skip(f"{name} is not installed")
    ones, zeros = np.ones(64, "<f4"), np.zeros((8, 64), "<f4")
    arrays = {"wte.weight": WEIGHT, "wpe.weight": zeros, "ln_f.weight": ones, "ln_f.bias": zeros[0]}
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    whole = b"".join([struct.pack("<Q", len(text)), text, *(array.tobytes() for array in arrays.values())])
    (folder / "model.safetensors").write_bytes(whole)
    of = {"vocab_size": 32, "n_embd": 64, "n_layer": 0, "n_head": 1, "n_positions": 8}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2Model"], **of}))
    return folder / "config.json"


@dataclass(frozen=True)
class Case:
    """One kind of artifact."""

    format: str
    make: Callable[[Path], Path]
    #: Name of `weight` in the image.
    weight: str = "weight"
    options: dict[str, Any] = field(default_factory=dict)
    #: Whether its headers say how large the image is; not where it is unpacked, rearranged or left to a framework.
    tells_size: bool = True


CASES = {
    "safetensors": Case("safetensors", safetensors_file),
    "shards": Case("safetensors", safetensors_shards),
    "npz": Case("npz", npz_file, tells_size=False),
    "npy": Case("npy", npy_file, weight="arr_0"),
    "npy, column-major": Case("npy", npy_column_major, weight="arr_0", tells_size=False),
    "torch": Case("torch", torch_file),
    "onnx": Case("onnx", onnx_file, options={"optimize": "none"}, tells_size=False),
    "mxnet": Case("mxnet", mxnet_files),
    "transformers": Case("transformers", transformers_folder, weight="wte.weight"),
}
#: What an error names: a file of any of these.
A_FILE = r"m[-.]|model\.|config\."


SUFFIXES = [".bin", ".json", ".onnx", ".params", ".npz", ".npy", ".safetensors", ""]


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def main(case: Case, tmp_path: Path) -> Path:
    folder = tmp_path / "artifact"
    folder.mkdir()
    return case.make(folder)


def artifact(case: Case, main: Path, **options: Any) -> Artifact:
    options = {**case.options, **options}
    return Artifact(case.format, converter(case.format).files(main, options), options)


def test_it_is_a_converter_that_says_what_the_image_depends_on(case: Case) -> None:
    found = converter(case.format)
    assert isinstance(found, Converter)
    assert found.format == case.format
    assert type(found.version) is int
    assert type(found.host_specific) is bool
    assert type(found.needs_child(case.options)) is bool
    assert all(type(name) is str for name in found.frameworks(case.options))


def test_it_alone_claims_its_files(case: Case, main: Path) -> None:
    assert detect(main).format == case.format


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=100), suffix=st.sampled_from(SUFFIXES))
def test_claiming_never_raises(case: Case, data: bytes, suffix: str) -> None:
    for prefix in (b"", b"PK\x03\x04", b"\x80\x02", b"\x08\x07"):
        assert converter(case.format).claims(Path(f"/nowhere/x{suffix}"), prefix + data) in (True, False)


def test_its_files_begin_with_the_main_one_and_are_absolute(case: Case, main: Path) -> None:
    files = artifact(case, main).files
    assert files[0] == main
    assert all(path.is_absolute() and path.is_file() for path in files)
    assert len(set(files)) == len(files)


def test_a_missing_file_is_named(case: Case, main: Path) -> None:
    for path in artifact(case, main).files:
        hidden = path.rename(path.with_suffix(".hidden"))
        with pytest.raises(ArtifactError, match=A_FILE):
            artifact(case, main)
        hidden.rename(path)


def test_the_least_that_its_headers_say_of_the_image_is_no_more_than_that_takes(
    case: Case, main: Path, tmp_path: Path
) -> None:
    found = artifact(case, main)
    least, image = least_image_bytes(found), convert(found, tmp_path / "image")
    assert least <= image.stat().st_size
    assert (least >= WEIGHT.nbytes) is case.tells_size


@pytest.mark.parametrize("options", [{"no_such_option": 1}, {"allow_pickle": "yes"}])
def test_an_option_it_does_not_know_is_named(case: Case, main: Path, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ArtifactError, match=name):
        artifact(case, main, **options)


def test_its_recipe_is_json_and_stable(case: Case, main: Path) -> None:
    found = recipe(converter(case.format), artifact(case, main), Environment())
    assert found == json.loads(json.dumps(found)) == recipe(converter(case.format), artifact(case, main), Environment())


def test_the_image_holds_the_weights_and_the_same_artifact_gives_the_same_image(
    case: Case, main: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in main.parent.iterdir()}
    first = convert(artifact(case, main), tmp_path / "first")
    second = convert(artifact(case, main), tmp_path / "second")
    assert first.read_bytes() == second.read_bytes()
    assert {path: path.read_bytes() for path in main.parent.iterdir()} == before
    with Weights.map_file(first) as weights:
        assert np.array_equal(weights[case.weight], WEIGHT)


def test_a_conversion_can_be_closed_at_any_moment(case: Case, main: Path) -> None:
    for steps in range(2):
        with start_conversion(artifact(case, main), limits=LIMITS) as conversion:
            if steps:
                assert conversion.plan() > WEIGHT.nbytes


@pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
def test_a_truncated_file_is_an_error_that_names_it(case: Case, main: Path, tmp_path: Path, share: float) -> None:
    *_, last = artifact(case, main).files
    os.truncate(last, int(last.stat().st_size * share))
    with pytest.raises(TrimsError, match=A_FILE) as caught:
        convert(artifact(case, main), tmp_path / "image")
    assert caught.value.code in ("bad_artifact", "conversion")


WITHOUT_FRAMEWORK = """
import sys
from pathlib import Path
from trims.formats.conversion.conversion import converter
chosen = converter(sys.argv[1])
chosen.claims(Path(sys.argv[2]), Path(sys.argv[2]).read_bytes()[:4096])
chosen.files(Path(sys.argv[2]), {})
print(*{name.partition(".")[0] for name in sys.modules})
"""


def test_finding_its_files_imports_no_framework_as_the_daemon_does_it(case: Case, main: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-s", "-c", WITHOUT_FRAMEWORK, case.format, str(main)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    heavy = {"torch", "onnx", "onnxruntime", "mxnet", "transformers", "safetensors", "numpy"}
    assert not heavy.intersection(printed.split())


def test_every_registered_format_has_a_row_here() -> None:
    claiming = set(plugins.formats()) - {"bytes", "cast"}  # which claim no file: tests/e2e/test_transparent*.py
    assert {case.format for case in CASES.values()} == claiming
