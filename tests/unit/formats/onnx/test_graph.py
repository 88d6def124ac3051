"""An ONNX model taken apart without protobuf: what protobuf would find, and a reason for what needs a conversion."""

# fault (in place): a damaged or hostile ONNX model -> nothing of it is run; read in a child with limits

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from in_place_files import weights_of
from onnx_files import CONVERTER, linear, located, save, value

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_models import attention, convolution  # noqa: E402

from trims.core.errors import ArtifactError, NotInPlaceError, TrimsError  # noqa: E402
from trims.formats.base import Artifact  # noqa: E402
from trims.formats.onnx import graph as onnx_graph  # noqa: E402
from trims.formats.onnx.wire_format import bytes_field  # noqa: E402
from trims.image.in_place import plan_in_place  # noqa: E402
from trims.image.program import Program  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.image.plan import Contents

RAMP = np.arange(2048, dtype=np.float32).reshape(32, 64)


def contents(main: Path, **options: Any) -> Contents:
    return CONVERTER.contents(Artifact("onnx", CONVERTER.files(main, options), options))


def program_of(found: Contents) -> Program:
    assert found.program is not None
    return found.program


def model_of(found: Contents) -> Any:
    return onnx.load_from_string(program_of(found).body)


def adds(path: Path, *initializers: Any) -> Path:
    """A model that adds its initializers to an input."""
    names = ["x", *(tensor.name for tensor in initializers)]
    node = helper.make_node("Sum", names, ["y"])
    shapes = [value(name, TensorProto.FLOAT, ["N", 64]) for name in ("x", "y")]
    return save(path, [node], [shapes[0]], [shapes[1]], list(initializers))


@pytest.mark.parametrize("make", [convolution, attention, linear, lambda f: linear(f, external="w.bin")])
def test_initializers_are_found_as_onnx_finds_them(make: Callable[[Path], Path], tmp_path: Path) -> None:
    main = make(tmp_path)
    model = onnx.load(main)
    wanted = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    with weights_of(contents(main), tmp_path) as weights:
        assert list(weights) == list(wanted)
        for name, array in wanted.items():
            assert (weights[name].dtype, weights[name].flags.aligned) == (array.dtype, True)
            np.testing.assert_array_equal(weights[name], array)


@pytest.mark.parametrize("make", [convolution, attention, linear, lambda f: linear(f, external="w.bin")])
def test_the_program_is_the_model_without_its_large_initializers(make: Callable[[Path], Path], tmp_path: Path) -> None:
    main = make(tmp_path)
    found, model = contents(main), onnx.load(main)
    left, attributes = model_of(found), program_of(found).attributes
    fed, beside = set(attributes["fed"]), set(attributes["external"]["names"])
    large = {t.name for t in model.graph.initializer if len(t.raw_data) >= onnx_graph.INLINE_BELOW_BYTES}
    assert fed | beside == large != set()
    for tensor in left.graph.initializer:
        if tensor.name in large:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            location = "null" if tensor.name in fed else "w.bin"
            assert (tensor.data_location, entries["location"], tensor.raw_data) == (1, location, b"")
        else:
            assert (tensor.data_location, len(tensor.raw_data) > 0) == (0, True)
    for one in (left, model):
        del one.graph.initializer[:]
    assert left == model


def test_inputs_and_outputs_are_described_as_by_a_conversion(tmp_path: Path) -> None:
    main = linear(tmp_path)
    attributes, (converted,) = program_of(contents(main)).attributes, [CONVERTER.plan(Artifact("onnx", (main,), {}))]
    theirs = Program.decode(converted.program).attributes
    for key in ("inputs", "outputs", "optimize", "prepack", "threads"):
        assert attributes[key] == theirs[key]


def test_odd_inputs_are_described_too(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    no_shape = helper.make_tensor_value_info("n", TensorProto.STRING, None)
    weight = numpy_helper.from_array(RAMP, "w")
    dims = [value("d", TensorProto.INT64, ["N", None, 3, -1, 0])]
    main = save(tmp_path / "m.onnx", [], [sequence, no_shape, *dims], [], [weight])
    assert program_of(contents(main)).attributes["inputs"] == [
        {"name": "s", "dtype": None, "shape": []},
        {"name": "n", "dtype": None, "shape": []},
        {"name": "d", "dtype": "I64", "shape": ["N", None, 3, -1, 0]},
    ]


def test_options_are_kept_for_sessions_and_checked(tmp_path: Path) -> None:
    attributes = program_of(contents(linear(tmp_path), optimize=False, prepack=True, threads=2)).attributes
    assert (attributes["optimize"], attributes["prepack"], attributes["threads"]) == ("none", True, 2)
    with pytest.raises(ArtifactError, match="option threads"):
        contents(linear(tmp_path), threads=-1)


def test_metadata_is_whole(tmp_path: Path) -> None:
    model = onnx.load(linear(tmp_path))
    helper.set_model_props(model, {"author": "x" * 10_000, "\N{SNOWMAN}": "snow"})
    onnx.save(model, tmp_path / "m.onnx")
    assert contents(tmp_path / "m.onnx").metadata == {"author": "x" * 10_000, "\N{SNOWMAN}": "snow"}


def test_numbers_that_are_not_stored_as_bytes_stay_in_the_program(tmp_path: Path) -> None:
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [64], [1.5] * 64)
    assert not typed.raw_data
    names = helper.make_tensor("names", TensorProto.STRING, [2], [b"a", b"b"])
    four_bits = helper.make_tensor("four", TensorProto.INT4, [4], [1, 2, 3, 4])
    main = adds(tmp_path / "m.onnx", numpy_helper.from_array(RAMP, "w"), typed, names, four_bits)
    found = contents(main)
    assert [source.name for source in found.sources] == ["w"]
    assert list(model_of(found).graph.initializer)[1:] == [typed, names, four_bits]


def test_a_model_of_typed_numbers_alone_is_all_program(tmp_path: Path) -> None:
    main = adds(tmp_path / "m.onnx", helper.make_tensor("typed", TensorProto.FLOAT, [64], [1.5] * 64))
    plan = plan_in_place(contents(main))
    assert plan.pages == ()


def test_small_external_tensors_are_taken_into_the_program(tmp_path: Path) -> None:
    main = adds(tmp_path / "m.onnx", numpy_helper.from_array(RAMP, "w"), numpy_helper.from_array(RAMP[0], "small"))
    model = onnx.load(main)
    onnx.save(model, main, save_as_external_data=True, location="w.bin", size_threshold=0)
    found = contents(main)
    (_, small) = model_of(found).graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(small), RAMP[0])
    attributes = program_of(found).attributes
    status = (tmp_path / "w.bin").stat()
    assert (attributes["fed"], attributes["external"]) == (
        [],
        {
            "folder": str(tmp_path),
            "names": ["w"],
            "files": {"w.bin": [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]},
        },
    )
    assert {source.span.file.path.name for source in found.sources if source.span} == {"w.bin"}


def test_external_tensors_at_one_place_are_tied(tmp_path: Path) -> None:
    main = adds(tmp_path / "m.onnx", numpy_helper.from_array(RAMP, "a"), numpy_helper.from_array(RAMP, "b"))
    model = onnx.load(main)
    onnx.save(model, main, save_as_external_data=True, location="w.bin", size_threshold=0)
    model = onnx.load(main, load_external_data=False)
    for entry in model.graph.initializer[1].external_data:
        entry.value = {"offset": "0"}.get(entry.key, entry.value)
    onnx.save(model, main)
    assert [source.tied_to for source in contents(main).sources] == [None, "a"]


def test_weights_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = adds(tmp_path / "m.onnx", numpy_helper.from_array(np.ones((1 << 16, 64), np.float32), "w"))
    lengths, pread = [], os.pread

    def counting(fd: int, length: int, offset: int) -> bytes:
        lengths.append(length)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", counting)
    contents(main)
    assert 0 < sum(lengths) < 64 << 10


# -- what needs a conversion -------------------------------------------------------------------------------------------


def external(tmp_path: Path, **entries: str) -> Path:
    """A model whose one initializer is stored externally, by these entries."""
    main = linear(tmp_path, external="w.bin")
    model = onnx.load(main, load_external_data=False)
    tensor = model.graph.initializer[0]
    known = {entry.key: entry.value for entry in tensor.external_data} | entries
    del tensor.external_data[:]
    for key, text in known.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    onnx.save(model, main)
    return main


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"offset": "8192"}, r"'weight' of F32\[32, 64\] has 8192 bytes"),
        ({"length": "8191"}, "has 8191 bytes"),
        ({"offset": "-1"}, "b'-1' is no place in a file"),
        ({"offset": "1" * 30}, "is no place in a file"),
        ({"length": "many"}, "is no place in a file"),
    ],
)
def test_external_data_that_is_not_there_is_left_to_a_conversion(
    entries: dict[str, str], why: str, tmp_path: Path
) -> None:
    with pytest.raises(NotInPlaceError, match=why):
        contents(external(tmp_path, **entries))


def test_external_data_without_a_length_goes_by_its_shape(tmp_path: Path) -> None:
    main = external(tmp_path)
    model = onnx.load(main, load_external_data=False)
    entries = model.graph.initializer[0].external_data
    for entry in [entry for entry in entries if entry.key in ("length", "offset")]:
        entries.remove(entry)
    onnx.save(model, main)
    source = contents(main).sources[0]
    assert source.span is not None
    assert (source.span.file.path.name, source.span.offset) == ("w.bin", 0)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "*/_ORT_MEM_ADDR_/*"])
def test_external_data_outside_the_models_folder_is_refused(location: str, tmp_path: Path) -> None:
    main = external(tmp_path, location=location)
    with pytest.raises(ArtifactError):
        CONVERTER.contents(Artifact("onnx", (main,), {}))


def test_external_data_behind_a_link_out_of_the_models_folder_is_refused(tmp_path: Path) -> None:
    main = external(tmp_path)
    secret = tmp_path / "secret.bin"
    (tmp_path / "model").mkdir()
    (tmp_path / "w.bin").rename(secret)
    (tmp_path / "model" / "w.bin").symlink_to(secret)
    main = main.rename(tmp_path / "model" / main.name)
    with pytest.raises(ArtifactError, match="outside the model's folder"):
        CONVERTER.contents(Artifact("onnx", (main,), {}))


def test_two_locations_of_one_tensor_are_left_to_a_conversion(tmp_path: Path) -> None:
    main = external(tmp_path)
    (tmp_path / "other.bin").write_bytes(bytes(8192))
    again = onnx.StringStringEntryProto(key="location", value="other.bin")
    model = onnx.load(main, load_external_data=False)
    model.graph.initializer[0].external_data.append(again)
    main.write_bytes(model.SerializeToString())
    with pytest.raises(NotInPlaceError, match="two entries 'location'"):
        CONVERTER.contents(Artifact("onnx", (main,), {}))


@pytest.mark.parametrize("where", ["attribute", "subgraph", "sparse values", "function", "training"])
def test_external_data_in_other_places_takes_a_conversion(where: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(8192))
    model, outside = onnx.load(linear(tmp_path)), located("w.bin", where=where)
    if outside.startswith(b"\x3a\0"):  # an empty graph
        inside, beside = b"", outside[2:]
    else:
        inside, beside = outside[2:], b""
    graph = model.graph.SerializeToString() + inside
    model.ClearField("graph")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString() + bytes_field(7, graph) + beside)
    with pytest.raises(NotInPlaceError, match="outside its graph's own initializers"):
        contents(tmp_path / "m.onnx")


def test_an_external_tensor_of_a_type_that_images_lack_takes_a_conversion(tmp_path: Path) -> None:
    main = external(tmp_path)
    model = onnx.load(main, load_external_data=False)
    model.graph.initializer[0].data_type = TensorProto.INT4
    onnx.save(model, main)
    with pytest.raises(NotInPlaceError, match="outside its graph's own initializers"):
        contents(main)


def test_a_node_with_an_input_named_location_is_no_external_data(tmp_path: Path) -> None:
    node = helper.make_node("Add", ["location", "w"], ["y"])
    shapes = [value(name, TensorProto.FLOAT, [32, 64]) for name in ("location", "y")]
    main = save(tmp_path / "m.onnx", [node], [shapes[0]], [shapes[1]], [numpy_helper.from_array(RAMP, "w")])
    assert program_of(contents(main)).attributes["fed"] == ["w"]


def changed(main: Path, change: Callable[[Any], object]) -> Path:
    model = onnx.load(main)
    change(model)
    onnx.save(model, main)
    return main


NOT_HERE: dict[str, tuple[Callable[[Any], object], str]] = {
    "too few bytes": (lambda m: m.graph.initializer[0].ClearField("dims"), r"F32\[\] has 8192 bytes"),
    "a negative extent": (lambda m: m.graph.initializer[0].dims.append(-1), "impossible shape"),
    "many dimensions": (lambda m: m.graph.initializer[0].dims.extend([1] * 70), "impossible shape"),
    "a name twice": (lambda m: setattr(m.graph.initializer[1], "name", "weight"), "'weight' is there twice"),
    "no name": (lambda m: m.graph.initializer[1].ClearField("name"), "'' is there twice, or has no name"),
    "no data": (lambda m: m.graph.initializer[1].ClearField("raw_data"), "'bias' has no data"),
    "a long name": (lambda m: setattr(m.graph.initializer[1], "name", "n" * 5000), "a name of 5000 bytes"),
}


@pytest.mark.parametrize("what", NOT_HERE)
def test_an_initializer_that_only_a_framework_may_judge(what: str, tmp_path: Path) -> None:
    change, why = NOT_HERE[what]
    with pytest.raises(NotInPlaceError, match=why):
        contents(changed(linear(tmp_path), change))


def test_a_tensor_in_segments_stays_in_the_program(tmp_path: Path) -> None:
    main = changed(linear(tmp_path), lambda m: setattr(m.graph.initializer[0].segment, "begin", 0))
    assert [source.name for source in contents(main).sources] == ["bias"]


def test_two_graphs_are_not_merged_here(tmp_path: Path) -> None:
    main = linear(tmp_path)
    main.write_bytes(main.read_bytes() + bytes_field(7, b""))
    with pytest.raises(NotInPlaceError, match="two graphs"):
        contents(main)


def test_a_graph_that_is_large_without_its_weights_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_graph, "_MAX_PROGRAM_BYTES", 300)
    with pytest.raises(NotInPlaceError, match="its graph without dense weights is larger than 300 B"):
        contents(linear(tmp_path))


def test_a_description_that_takes_many_steps_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graph, "_MAX_FIELDS", 10)
    with pytest.raises(NotInPlaceError, match="more than 10 parts"):
        contents(linear(tmp_path))


def test_a_text_that_is_not_utf_8_is_left_to_a_conversion(tmp_path: Path) -> None:
    main = linear(tmp_path)
    main.write_bytes(main.read_bytes().replace(b"\x08weight"[1:], b"\xff" * 6))
    with pytest.raises(NotInPlaceError, match="not UTF-8"):
        contents(main)


@pytest.mark.parametrize("external_file", [None, "w.bin"])
def test_random_damage_gives_tensors_inside_the_files_or_an_error(external_file: str | None, tmp_path: Path) -> None:
    main, chance = linear(tmp_path, external=external_file), random.Random(0)
    good, refused = main.read_bytes(), 0
    head = [*range(200), *range(len(good) - 400, len(good))]
    for _ in range(400):
        data = bytearray(good)
        for _ in range(chance.choice([1, 2, 5])):
            data[chance.choice(head) % len(data)] = chance.randrange(256)
        main.write_bytes(data[: chance.choice([len(data), len(data), chance.randrange(len(data))])])
        try:
            plan = plan_in_place(contents(main))
        except TrimsError:
            refused += 1
        else:
            assert all(part.offset + part.nbytes <= part.file.path.stat().st_size for part in plan.pages)
    assert 50 < refused < 400
