"""PyTorch checkpoints become images: what is read, tied, refused; and skeletons of the modules they belong to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import trims

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from trims_client.frameworks.torch import _DTYPES, state_dict  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.core.errors import ArtifactError, NotSupportedError, TrimsError  # noqa: E402
from trims.core.layout import DTYPES  # noqa: E402
from trims.formats.base import Artifact  # noqa: E402
from trims.formats.torch import TorchConverter  # noqa: E402
from trims.image.check import check_image  # noqa: E402
from trims.image.reader import ImageView  # noqa: E402
from trims.testing import torch_modules  # noqa: E402
from trims.testing.converters import artifact_at, convert  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

CONVERTER = TorchConverter()
MODULES = "trims.testing.torch_modules"


def saved(folder: Path, value: Any, **how: Any) -> Path:
    path = folder / "m.pt"
    torch.save(value, path, **how)
    return path


def image_of(path: Path, **options: Any) -> ImageView:
    """Through plan and write, in this process: the child has tests of its own."""
    plan = CONVERTER.plan(Artifact("torch", CONVERTER.files(path, options), options))
    memory = bytearray(plan.nbytes)
    plan.write_into(memoryview(memory))
    view = ImageView(memoryview(memory).toreadonly())
    check_image(view)
    return view


def tensors_of(view: ImageView) -> dict[str, torch.Tensor]:
    return {
        spec.name: torch.frombuffer(bytearray(view.tensor(spec.name)), dtype=_DTYPES[spec.dtype]).view(spec.shape)
        if spec.nbytes
        else torch.empty(spec.shape, dtype=_DTYPES[spec.dtype])
        for spec in view.layout
    }


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape, bits(found[name])) == (tensor.dtype, tensor.shape, bits(tensor))


def one_of_each_dtype() -> dict[str, torch.Tensor]:
    raw = torch.randint(0, 2, (2, 3, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = {f"{name}.weight": raw.view(_DTYPES[name]).clone() for name in DTYPES}
    return found | {"scalar": torch.tensor(3.5), "empty": torch.empty((0, 4), dtype=torch.bfloat16)}


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
def test_every_dtype_scalar_and_empty_tensor_comes_out_bit_for_bit(tmp_path: Path, zip_format: bool) -> None:
    wanted = one_of_each_dtype()
    if not zip_format:  # torch's legacy format knows no storages of these
        unknown = ("U16", "U32", "U64", "F8")
        wanted = {name: tensor for name, tensor in wanted.items() if not name.startswith(unknown)}
    path = saved(tmp_path, wanted, _use_new_zipfile_serialization=zip_format)
    assert CONVERTER.claims(path, path.read_bytes()[:4096])
    assert_equal(tensors_of(image_of(path)), wanted)


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model"])
def test_training_checkpoints_are_unwrapped_and_what_is_left_out_is_noted(tmp_path: Path, wrapper: str) -> None:
    state = {"w": torch.ones(2), "note": "hello"}
    path = saved(tmp_path, {"epoch": 3, wrapper: state, "optimizer": {"step": torch.ones(1)}})
    view = image_of(path)
    assert list(view.layout.tensors) == ["w"]
    assert view.metadata == {"ignored": "epoch, optimizer, note"}


def test_an_empty_state_dict_is_an_empty_image(tmp_path: Path) -> None:
    assert len(image_of(saved(tmp_path, {})).layout) == 0


def test_non_contiguous_views_become_dense(tmp_path: Path) -> None:
    base = torch.arange(24.0).view(4, 6)
    wanted = {"t": base.t(), "step": base[::2, 1::2], "conj": torch.tensor([1 + 2j]).conj(), "last": base[3]}
    assert_equal(tensors_of(image_of(saved(tmp_path, wanted))), {n: t.resolve_conj() for n, t in wanted.items()})


def test_only_the_same_memory_seen_the_same_way_is_tied(tmp_path: Path) -> None:
    base = torch.arange(16.0).view(4, 4)
    state = {"a": base, "same": base, "turned": base.t(), "part": base[0], "equal": base.clone(), "e": base[:0]}
    tensors = image_of(saved(tmp_path, state)).layout.tensors
    offsets = {name: tensors[name].offset for name in state}
    assert offsets["a"] == offsets["same"]
    assert len({offsets[name] for name in ("a", "turned", "part", "equal")}) == 4


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:.*(deprecated|beta|prototype).*")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (quantized, "'w' is quantized; save it dense"),
        (lambda: torch.eye(3).to_sparse(), "'w' is sparse_coo; save it dense"),
        (lambda: torch.eye(3).to_sparse_csr(), "'w' is sparse_csr"),
        (lambda: torch.empty(3, device="meta"), "is on device meta: it has no bytes"),
        (lambda: torch.ones(2, dtype=torch.complex128), "dtype torch.complex128, which images do not know"),
    ],
)
def test_a_tensor_that_is_not_plain_bytes_is_refused_by_name(tmp_path: Path, make: Any, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        image_of(saved(tmp_path, {"w": make()}))


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, torch.ones(2), {"state_dict": {"a": 1}}, None, {"x": {"w": 1}}])
def test_a_file_without_a_state_dict_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ArtifactError, match=r"m\.pt: neither a state dict nor a dict with one"):
        image_of(saved(tmp_path, value))


def test_a_tensor_under_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="named 7, which is no string"):
        image_of(saved(tmp_path, {7: torch.ones(1)}))


class Trap:
    """Unpickling it would write a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
def test_code_in_a_checkpoint_does_not_run(tmp_path: Path, zip_format: bool) -> None:
    path = saved(
        tmp_path, {"w": torch.ones(1), "x": Trap(str(tmp_path / "trap"))}, _use_new_zipfile_serialization=zip_format
    )
    with pytest.raises(ArtifactError, match=r"not a checkpoint of tensors only.*allow_pickle: true"):
        image_of(path)
    assert not (tmp_path / "trap").exists()


def test_code_in_a_checkpoint_runs_only_when_the_manifest_allows_it(tmp_path: Path) -> None:
    image_of(saved(tmp_path, {"w": torch.ones(1), "x": {1: Trap}}), allow_pickle=True)


def test_damaged_files_are_artifact_errors(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.ones(1000)})
    data = path.read_bytes()
    for damaged in (
        b"",
        data[:3],
        data[:200],
        data[: len(data) // 2],
        data[:-1],
        b"PK\x03\x04" + bytes(500),
        b"\x80\x02}q\0.",
    ):
        path.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"m\.pt"):
            image_of(path)


def test_a_file_that_changes_between_planning_and_writing_is_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.ones(1000)})
    plan = CONVERTER.plan(Artifact("torch", (path,)))
    with path.open("r+b") as file:
        file.seek(1500)
        file.write(b"x")
    with pytest.raises(ArtifactError, match="was changed while it was read"):
        plan.write_into(memoryview(bytearray(plan.nbytes)))


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="unknown options mmap"):
        image_of(saved(tmp_path, {}), mmap=True)


# -- skeletons --------------------------------------------------------------------------------------------------


def test_a_skeleton_says_all_that_a_client_must_know(tmp_path: Path) -> None:
    path = saved(tmp_path, torch_modules.tied_model().state_dict())
    view = image_of(path, module=f"{MODULES}:tied_model")
    program = view.program()
    assert program is not None
    assert program.kind == "torch-skeleton"
    assert program.attributes == json.loads(json.dumps({
        "class": f"{MODULES}.TiedModel",
        "training": False,
        "versions": {"torch": torch.__version__, "trims": trims.__version__},
        "buffers": ["calls", "positions"],
        "non_persistent": ["positions"],
        "constants": ["__constant__.0"],
        "frozen": ["calls", "scale"],
        "tied": [["embedding.weight", "out.weight"]],
    }))  # fmt: skip
    assert torch.equal(tensors_of(view)["positions"], torch.arange(5.0).reshape(5, 1))
    assert len(program.body) < 4000


def test_a_file_that_keeps_one_name_of_a_tied_weight_gets_the_other(tmp_path: Path) -> None:
    state = torch_modules.tied_model().state_dict()
    for kept, dropped in (("embedding.weight", "out.weight"), ("out.weight", "embedding.weight")):
        path = saved(tmp_path, {name: tensor for name, tensor in state.items() if name != dropped})
        tensors = image_of(path, module=f"{MODULES}:tied_model").layout.tensors
        assert tensors[kept].offset == tensors[dropped].offset


def test_names_that_do_not_fit_the_module_are_all_listed(tmp_path: Path) -> None:
    state = torch_modules.conv_net().state_dict()
    state["surplus"] = state.pop("head.bias")
    path = saved(tmp_path, state)
    with pytest.raises(ArtifactError, match=r"missing 'head\.bias'; unexpected 'surplus'"):
        image_of(path, module=f"{MODULES}:conv_net")


def test_left_over_names_may_be_ignored_by_pattern(tmp_path: Path) -> None:
    state = torch_modules.conv_net().state_dict() | {"old.a": torch.ones(1), "old.b": torch.ones(1)}
    view = image_of(saved(tmp_path, state), module=f"{MODULES}:conv_net", ignore=["old.*"])
    assert "old.a" in view.layout.tensors


def test_a_tensor_named_like_a_non_persistent_buffer_is_the_modules_as_in_torch(tmp_path: Path) -> None:
    state = torch_modules.tied_model().state_dict() | {"positions": torch.zeros(5, 1)}
    view = image_of(saved(tmp_path, state), module=f"{MODULES}:tied_model")
    assert torch.equal(tensors_of(view)["positions"], torch.arange(5.0).reshape(5, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda bias: bias.half(), r"'head.bias' is F16\[2\], the module has F32\[2\]"),
        (lambda bias: bias[:1], r"'head.bias' is F32\[1\], the module has F32\[2\]"),
    ],
)
def test_a_dtype_or_shape_that_does_not_fit_the_module_is_named(tmp_path: Path, change: Any, words: str) -> None:
    state = torch_modules.conv_net().state_dict()
    state["head.bias"] = change(state["head.bias"])
    with pytest.raises(ArtifactError, match=words):
        image_of(saved(tmp_path, state), module=f"{MODULES}:conv_net")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"module": "nowhere:f"}, NotSupportedError, "'nowhere:f' cannot be loaded in .*No module named 'nowhere'"),
        ({"module": f"{MODULES}:nothing"}, NotSupportedError, "has no attribute 'nothing'"),
        ({"module": "json"}, ArtifactError, "must be 'package.module:function'"),
        ({"module": 3}, ArtifactError, "must be 'package.module:function'"),
        ({"module": f"{MODULES}:conv_net", "module_args": [1]}, ArtifactError, "module_args a map"),
        ({"module": f"{MODULES}:no_module"}, ArtifactError, "returned a dict, not a torch.nn.Module"),
        ({"module": f"{MODULES}:with_lambda"}, ArtifactError, "cannot be pickled"),
    ],
)
def test_a_builder_that_does_not_work_is_named(
    tmp_path: Path, options: dict[str, Any], error: type[TrimsError], words: str
) -> None:
    with pytest.raises(error, match=words):
        image_of(saved(tmp_path, torch_modules.conv_net().state_dict()), **options)


def test_extra_state_is_refused(tmp_path: Path) -> None:
    state = nn.Linear(1, 1).state_dict()
    with pytest.raises(ArtifactError, match="extra state '_extra_state'"):
        image_of(saved(tmp_path, state), module=f"{MODULES}:with_extra_state")


def test_a_whole_module_becomes_a_skeleton_only_with_allow_pickle(tmp_path: Path) -> None:
    path = saved(tmp_path, torch_modules.conv_net())
    with pytest.raises(ArtifactError, match="allow_pickle: true"):
        image_of(path)
    program = image_of(path, allow_pickle=True).program()
    assert program is not None
    assert program.attributes["class"].endswith("ConvNet")


def test_it_is_converted_in_a_child_and_the_skeletons_builder_gets_its_arguments(tmp_path: Path) -> None:
    module = torch_modules.conv_net(7)
    path = saved(tmp_path, module.state_dict())
    artifact = artifact_at(path, module=f"{MODULES}:conv_net", module_args={"width": 7})
    with Weights.map_file(convert(artifact, tmp_path / "image")) as weights:
        assert weights.program() is not None
        assert_equal(state_dict(weights), module.state_dict())


def test_the_module_is_not_filled_with_random_numbers_that_would_be_overwritten() -> None:
    from trims.formats.skeleton import _NoRandomInitialization

    torch.manual_seed(0)
    before = torch.get_rng_state()
    with _NoRandomInitialization():
        torch_modules.conv_net()
    assert torch.equal(torch.get_rng_state(), before)
