"""PyTorch over shared weights: views and modules that behave as the framework's own, bit for bit."""

from __future__ import annotations

import gc
import pickle
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from in_place_files import weights_of  # noqa: E402
from torch_images import IMAGES, MODULES, WORDS, image_file, state, with_skeleton  # noqa: E402
from trims_client.frameworks import torch as trims_torch  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.core.errors import CallerError, ClosedError, NotSupportedError, PermissionDeniedError  # noqa: E402
from trims.formats.base import Artifact  # noqa: E402
from trims.formats.conversion.conversion import converter  # noqa: E402
from trims.image.plan import Contents, SourceTensor, plan_image  # noqa: E402
from trims.image.program import TORCH_SKELETON, Program  # noqa: E402
from trims.image.source import FileSpan, SourceFile  # noqa: E402
from trims.testing import torch_modules  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import nn


@pytest.fixture(params=["skeleton", "load_into"])
def loaded(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[..., tuple[nn.Module, nn.Module, Weights]]]:
    """Builds (framework's own module, ours, weights), by either way of loading."""
    opened: list[Weights] = []

    def load(build: Callable[[], Any], **how: Any) -> tuple[nn.Module, nn.Module, Weights]:
        own, path = with_skeleton(tmp_path, build)
        opened.append(Weights.map_file(path))
        if request.param == "skeleton":
            return own, trims_torch.module(opened[0], trust_program=True, **how), opened[0]
        return own, trims_torch.load_into(build().eval(), opened[0], strict=False, **how), opened[0]

    yield load
    for weights in opened:
        weights.close()


# -- state dicts ------------------------------------------------------------------------------------------------


def test_a_state_dict_has_every_dtype_scalar_and_empty_tensor_without_a_copy(tmp_path: Path) -> None:
    wanted = state()
    with Weights.map_file(image_file(tmp_path, wanted)) as weights:
        found = trims_torch.state_dict(weights)
        base = torch.frombuffer(weights.data(), dtype=torch.uint8).data_ptr()
        assert list(found) == list(wanted)
        for name, tensor in wanted.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            if tensor.numel():
                assert found[name].data_ptr() == base + weights.layout.tensors[name].offset
                assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


@pytest.fixture
def unaligned(tmp_path: Path) -> Iterator[Weights]:
    """`odd` and its twin begin one byte behind a multiple of 64, `even` at one."""
    (tmp_path / "raw").write_bytes(torch.arange(64, dtype=torch.float32).numpy().tobytes().rjust(257))
    file = SourceFile.look(tmp_path / "raw")
    sources = [
        SourceTensor("odd", "F32", (2, 3), span=FileSpan(file, 1)),
        SourceTensor("twin", "F32", (2, 3), tied_to="odd"),
        SourceTensor("even", "U8", (4,), span=FileSpan(file, 64)),
    ]
    with weights_of(Contents(sources), tmp_path) as weights:
        yield weights


def test_tensors_that_are_not_aligned_are_copied_once(unaligned: Weights) -> None:
    found, again = (trims_torch.state_dict(unaligned) for _ in range(2))
    assert torch.equal(found["odd"], torch.arange(6.0).reshape(2, 3))
    assert found["odd"].data_ptr() == found["twin"].data_ptr() == again["odd"].data_ptr()
    assert found["odd"].data_ptr() % 4 == 0
    assert unaligned.copied_bytes == 24
    base = torch.frombuffer(unaligned.data(), dtype=torch.uint8).data_ptr()
    assert found["even"].data_ptr() == base + unaligned.layout.tensors["even"].offset


def test_writable_tensors_that_are_not_aligned_are_copies_of_their_own(unaligned: Weights) -> None:
    written, other = (trims_torch.state_dict(unaligned, writable=True) for _ in range(2))
    written["odd"].zero_()
    assert torch.equal(written["twin"], torch.zeros(2, 3))
    for untouched in (other, trims_torch.state_dict(unaligned)):
        assert torch.equal(untouched["odd"], torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(("place", "ahead"), [("file", True), ("disk", True), ("cpu", False)])
def test_weights_in_files_are_mapped_ahead_in_the_order_of_the_module(
    place: str, ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[list[tuple[int, int]], object]] = []
    module = torch.nn.Sequential(torch.nn.Linear(5, 3, bias=False), torch.nn.Linear(3, 2, bias=False))
    path = image_file(tmp_path, {"0.weight": torch.ones(3, 5), "1.weight": torch.ones(2, 3)})
    with Weights.map_file(path) as weights, monkeypatch.context() as patched:
        patched.setattr(trims_torch, "map_ahead", lambda ranges, owner: told.append((ranges, owner)))
        patched.setattr(Weights, "place", place)
        trims_torch.load_into(module, weights)
    ranges = [(each.data_ptr(), each.nbytes) for each in module.parameters()]
    assert told == ([(ranges, module)] if ahead else [])


@pytest.mark.parametrize("error", [OSError, RuntimeError], ids=["no /proc", "no more threads"])
def test_a_module_is_loaded_where_nothing_can_be_mapped_ahead(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error("refused")

    path = image_file(tmp_path, {"weight": torch.ones(3, 5)})
    with Weights.map_file(path) as weights, monkeypatch.context() as patched:
        patched.setattr(trims_torch, "map_ahead", refuse)
        patched.setattr(Weights, "place", "file")
        module = trims_torch.load_into(torch.nn.Linear(5, 3, bias=False), weights)
    assert torch.equal(module.weight, torch.ones(3, 5))


def test_a_module_is_filled_with_tensors_that_are_not_aligned(unaligned: Weights) -> None:
    module = torch.nn.Module()
    module.odd = torch.nn.Parameter(torch.empty(2, 3, device="meta"))
    module.register_buffer("twin", torch.empty(2, 3, device="meta"))
    module.register_buffer("even", torch.empty(4, device="meta", dtype=torch.uint8))
    trims_torch.load_into(module, unaligned)
    assert torch.equal(module.odd, torch.arange(6.0).reshape(2, 3))
    module.twin.zero_()
    assert torch.equal(module.odd, torch.arange(6.0).reshape(2, 3)), "buffers are private"
    assert unaligned["twin"].sum() == 15


def test_tied_names_share_one_storage_as_the_framework_would_have_it(tmp_path: Path) -> None:
    with Weights.map_file(image_file(tmp_path, state())) as weights:
        found = trims_torch.state_dict(weights)
        assert found["a"].untyped_storage()._cdata == found["b"].untyped_storage()._cdata
        assert found["a"].untyped_storage().nbytes() == 24


def test_tensors_outlive_the_weights_and_the_last_of_them_ends_the_lease(tmp_path: Path) -> None:
    released: list[bool] = []
    weights = Weights.map_file(image_file(tmp_path, state()), on_release=lambda: released.append(True))
    found = trims_torch.state_dict(weights)
    weights.close()
    assert found["scalar"].item() == 2.5
    with pytest.raises(ClosedError):
        trims_torch.state_dict(weights)
    kept = found.pop("a")
    found.clear()
    gc.collect()
    assert not released
    assert kept.sum() == 6
    del kept
    gc.collect()
    assert released == [True]


def test_writable_tensors_change_this_process_only(tmp_path: Path) -> None:
    path = image_file(tmp_path, state())
    before = path.read_bytes()
    with Weights.map_file(path) as weights, Weights.map_file(path) as other:
        mine = trims_torch.state_dict(weights, writable=True)
        mine["a"].fill_(7)
        assert mine["b"].sum() == 42
        assert trims_torch.state_dict(weights)["a"].sum() == 6
        assert trims_torch.state_dict(other)["a"].sum() == 6
    assert path.read_bytes() == before


WRITE = """
import sys
from trims_client.frameworks import torch
from trims_client.weights import Weights
torch.state_dict(Weights.map_file(sys.argv[1]))["a"].fill_(7)
"""


def test_writing_into_shared_memory_ends_the_process_as_documented(tmp_path: Path) -> None:
    path = image_file(tmp_path, state())
    before = path.read_bytes()
    writer = subprocess.run([sys.executable, "-c", WRITE, path], capture_output=True, check=False)
    assert writer.returncode == -signal.SIGSEGV, writer.stderr
    assert path.read_bytes() == before


def test_read_only_views_give_no_warning(tmp_path: Path) -> None:
    script = WRITE.replace(".fill_(7)", ".sum()")
    command = [sys.executable, "-W", "error:The given buffer", "-c", script, image_file(tmp_path, state())]
    assert subprocess.run(command, capture_output=True, check=True).stderr == b""


# -- modules ------------------------------------------------------------------------------------------------------


def test_a_conv_net_gives_the_frameworks_own_outputs(loaded: Any) -> None:
    own, ours, _ = loaded(torch_modules.conv_net)
    assert torch.equal(ours(IMAGES), own(IMAGES))
    assert not ours.training
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in own.named_parameters()]


def test_a_forward_pass_in_train_mode_writes_its_own_copy_of_the_statistics(loaded: Any, tmp_path: Path) -> None:
    own, ours, weights = loaded(torch_modules.conv_net)
    before = (tmp_path / "m.image").read_bytes()
    for module in (own.train(), ours.train()):
        module(IMAGES)
    assert torch.equal(ours.body[1].running_mean, own.body[1].running_mean)
    assert torch.equal(ours.eval()(IMAGES), own.eval()(IMAGES))
    assert (tmp_path / "m.image").read_bytes() == before
    assert not torch.equal(torch.from_numpy(weights["body.1.running_mean"].copy()), own.body[1].running_mean)


def test_parameters_are_views_of_shared_memory(loaded: Any) -> None:
    _, ours, weights = loaded(torch_modules.conv_net)
    base = torch.frombuffer(weights.data(), dtype=torch.uint8).data_ptr()
    for name, parameter in ours.named_parameters():
        assert parameter.data_ptr() == base + weights.layout.tensors[name].offset


def test_tied_weights_are_one_parameter_and_requires_grad_is_the_frameworks(loaded: Any) -> None:
    own, ours, _ = loaded(torch_modules.tied_model)
    assert ours.out.weight is ours.embedding.weight
    flags = {name: parameter.requires_grad for name, parameter in ours.named_parameters()}
    assert flags == {name: parameter.requires_grad for name, parameter in own.named_parameters()}
    assert torch.equal(ours(WORDS), own(WORDS))


def test_buffers_count_in_each_process_alone(loaded: Any, tmp_path: Path) -> None:
    _, ours, _ = loaded(torch_modules.tied_model)
    before = (tmp_path / "m.image").read_bytes()
    ours(WORDS)
    ours(WORDS)
    assert ours.calls.item() == 2
    assert torch.equal(ours.positions, torch.arange(5.0).reshape(5, 1))
    assert (tmp_path / "m.image").read_bytes() == before


def test_a_gradient_step_works_on_a_writable_module_and_leaves_the_image_alone(loaded: Any, tmp_path: Path) -> None:
    own, ours, _ = loaded(torch_modules.conv_net, writable=True)
    before = (tmp_path / "m.image").read_bytes()
    for module in (own, ours):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        module(IMAGES).sum().backward()
        optimizer.step()
    assert torch.equal(ours.head.weight, own.head.weight)
    assert (tmp_path / "m.image").read_bytes() == before


def test_gradients_flow_through_a_read_only_module(loaded: Any) -> None:
    own, ours, _ = loaded(torch_modules.conv_net)
    for module in (own, ours):
        module(IMAGES).sum().backward()
    assert torch.equal(ours.head.weight.grad, own.head.weight.grad)


def test_a_module_survives_the_end_of_its_weights(loaded: Any) -> None:
    own, ours, weights = loaded(torch_modules.conv_net)
    weights.close()
    gc.collect()
    assert torch.equal(ours(IMAGES), own(IMAGES))


def test_a_module_can_be_saved_and_loaded_again(loaded: Any, tmp_path: Path) -> None:
    own, ours, _ = loaded(torch_modules.conv_net)
    torch.save(ours.state_dict(), tmp_path / "again.pt")
    again = torch_modules.conv_net()
    again.load_state_dict(torch.load(tmp_path / "again.pt", weights_only=True))
    assert torch.equal(again.eval()(IMAGES), own(IMAGES))
    assert (tmp_path / "again.pt").stat().st_size < 20_000  # its own bytes, not the whole mapping for each


@pytest.mark.parametrize("training", [False, True])
def test_a_transformers_bert_gives_the_frameworks_own_outputs(loaded: Any, training: bool) -> None:
    pytest.importorskip("transformers")
    own, ours, _ = loaded(torch_modules.tiny_bert)
    outputs = []
    for module in (own.train(training), ours.train(training)):
        torch.manual_seed(3)  # for dropout
        outputs.append(module(WORDS).last_hidden_state)
    assert torch.equal(*outputs)


def test_a_safetensors_file_gets_a_skeleton_too(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    torch.manual_seed(5)
    own = torch_modules.tiny_bert().eval()
    file, image = tmp_path / "model.safetensors", tmp_path / "image"
    safetensors.save_file({**own.state_dict(), "embeddings.position_ids": torch.arange(32)[None]}, file)
    plan = converter("safetensors").plan(Artifact("safetensors", (file,), {"module": f"{MODULES}:tiny_bert"}))
    image.write_bytes(bytes(plan.nbytes))
    with image.open("r+b") as target:
        plan.write(target.fileno())
    with Weights.map_file(image) as weights:
        ours = trims_torch.module(weights, trust_program=True)
        assert torch.equal(ours(WORDS).pooler_output, own(WORDS).pooler_output)


# -- who may unpickle what ------------------------------------------------------------------------------------------


def test_a_skeleton_of_unknown_origin_is_not_unpickled_unless_the_caller_says_so(tmp_path: Path) -> None:
    _, path = with_skeleton(tmp_path, torch_modules.conv_net)
    with Weights.map_file(path) as weights:
        assert not weights.trusted
        with pytest.raises(PermissionDeniedError, match="trust_program=True"):
            trims_torch.module(weights)
        weights.trusted = True
        assert isinstance(trims_torch.module(weights), torch_modules.ConvNet)
        with pytest.raises(PermissionDeniedError):
            trims_torch.module(weights, trust_program=False)


def with_program(folder: Path, program: Program | None) -> Weights:
    plan = plan_image([SourceTensor("w", "F32", (2,))], program=program)
    (folder / "image").write_bytes(bytes(plan.nbytes))
    with (folder / "image").open("r+b") as target:
        plan.write(target.fileno())
    return Weights.map_file(folder / "image")


def test_an_image_without_a_skeleton_says_what_to_do(tmp_path: Path) -> None:
    with with_program(tmp_path, None) as weights, pytest.raises(NotSupportedError, match=r"no program.*option module"):
        trims_torch.module(weights, trust_program=True)
    other = Program("onnxruntime")
    with with_program(tmp_path, other) as weights, pytest.raises(NotSupportedError, match="program for onnxruntime"):
        trims_torch.module(weights, trust_program=True)


def test_a_skeleton_of_another_version_is_refused_before_it_is_unpickled(tmp_path: Path) -> None:
    attributes = {"versions": {"torch": "1.0"}, "buffers": [], "constants": [], "frozen": []}
    words = r"made with torch 1\.0, here is torch 2.*trims evict --all-tiers"
    program = Program("torch-skeleton", attributes, b"no pickle")
    with with_program(tmp_path, program) as weights, pytest.raises(NotSupportedError, match=words):
        trims_torch.module(weights, trust_program=True)


# -- modules that the caller built ------------------------------------------------------------------------------------


def test_a_module_on_the_meta_device_takes_no_memory_before_it_is_loaded(tmp_path: Path) -> None:
    own, path = with_skeleton(tmp_path, torch_modules.conv_net)
    with torch.device("meta"):
        empty = torch_modules.conv_net().eval()
    with Weights.map_file(path) as weights:
        assert trims_torch.load_into(empty, weights) is empty
        assert torch.equal(empty(IMAGES), own(IMAGES))


def test_non_persistent_buffers_come_from_the_image_or_are_asked_for(tmp_path: Path) -> None:
    own, path = with_skeleton(tmp_path, torch_modules.tied_model)
    bare = image_file(tmp_path, own.state_dict(), "bare")
    with torch.device("meta"):
        known, unknown = torch_modules.tied_model(), torch_modules.tied_model()
    with Weights.map_file(path) as weights:
        trims_torch.load_into(known, weights, strict=False)
        assert torch.equal(known.positions, own.positions)
        assert known.out.weight is known.embedding.weight
    with Weights.map_file(bare) as weights, pytest.raises(CallerError, match="'positions' are in no state dict"):
        trims_torch.load_into(unknown, weights)
    with Weights.map_file(bare) as weights:
        built = trims_torch.load_into(torch_modules.tied_model().eval(), weights)
        assert torch.equal(built(WORDS), own(WORDS))


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was_after_a_module_was_made_or_could_not_be(tmp_path: Path, *, enabled: bool) -> None:
    _, path = with_skeleton(tmp_path, torch_modules.conv_net)
    versions = {"torch": str(torch.__version__)}
    unreadable = Program(TORCH_SKELETON, {"versions": versions, "frozen": [], "buffers": [], "constants": []}, b"\0")
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with Weights.map_file(path) as weights:
            trims_torch.module(weights, trust_program=True)
        assert gc.isenabled() is enabled
        with with_program(tmp_path, unreadable) as weights, pytest.raises(pickle.UnpicklingError):
            trims_torch.module(weights, trust_program=True)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
