"""PyTorch over weights on a device: shared parameters, private buffers, the framework's own answers.

On the fake, device memory is memory of this process, mapped read-only: a write into what is shared would end the test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import torch_ways  # noqa: E402
from torch_images import IMAGES, WORDS, image_file, state, with_skeleton  # noqa: E402
from trims_client.frameworks import torch as trims_torch  # noqa: E402
from trims_client.mapping import dlpack  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.core.errors import CallerError, NotSupportedError  # noqa: E402
from trims.testing import torch_modules  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_weights import DeviceShelf

VALUES = torch.linspace(-1, 1, 15).view(5, 3)


@pytest.fixture(params=["skeleton", "load_into"])
def loaded(request: pytest.FixtureRequest, shelf: DeviceShelf, tmp_path: Path) -> Callable[..., Any]:
    """Builds (framework's own module, ours, weights), by either way of loading."""

    def load(build: Callable[[], Any], **how: Any) -> tuple[Any, Any, Weights]:
        own, path = with_skeleton(tmp_path, build)
        weights = shelf.open(path)
        if request.param == "skeleton":
            return own, trims_torch.module(weights, trust_program=True, **how), weights
        return own, trims_torch.load_into(build().eval(), weights, strict=False, **how), weights

    return load


def test_a_state_dict_has_every_dtype_scalar_and_empty_tensor_without_a_copy(
    shelf: DeviceShelf, tmp_path: Path
) -> None:
    wanted = state()
    weights = shelf.open(image_file(tmp_path, wanted))
    found = trims_torch.state_dict(weights)
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        if tensor.numel():
            assert found[name].data_ptr() == weights.on_device(name).address
            assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_tied_names_share_one_storage(shelf: DeviceShelf, tmp_path: Path) -> None:
    found = trims_torch.state_dict(shelf.open(image_file(tmp_path, state())))
    assert found["a"].untyped_storage()._cdata == found["b"].untyped_storage()._cdata
    assert found["a"].data_ptr() == found["b"].data_ptr()


def test_the_block_is_borrowed_once_however_many_tensors_there_are(shelf: DeviceShelf, tmp_path: Path) -> None:
    found = trims_torch.state_dict(shelf.open(image_file(tmp_path, {f"t{n}": torch.ones(n) for n in range(1, 300)})))
    assert len(found) == 299
    assert dlpack.collect() == 1


def test_tensors_outlive_the_weights_and_the_last_of_them_ends_the_lease(shelf: DeviceShelf, tmp_path: Path) -> None:
    weights = shelf.open(image_file(tmp_path, state()))
    found = trims_torch.state_dict(weights)
    weights.close()
    kept = found.pop("a")
    found.clear()
    dlpack.collect()
    assert not shelf.released
    assert kept.sum() == 6
    del kept
    assert dlpack.collect() == 0
    assert len(shelf.released) == 1


def test_writable_tensors_are_copies_and_tied_ones_stay_one(shelf: DeviceShelf, tmp_path: Path) -> None:
    path = image_file(tmp_path, state())
    weights = shelf.open(path)
    mine = trims_torch.state_dict(weights, writable=True)
    mine["a"].fill_(7)
    assert mine["b"].sum() == 42
    assert trims_torch.state_dict(weights)["a"].sum() == 6
    assert shelf.bytes_of(path) == path.read_bytes()


@pytest.mark.parametrize(
    ("build", "given"),
    [
        ("conv_net", IMAGES),
        ("tied_model", WORDS),
        ("weight_normed", VALUES),
        ("weight_normed_by_hooks", VALUES),
        ("spectrally_normed", VALUES),
        ("with_view", VALUES),
    ],
)
def test_modules_give_the_frameworks_own_outputs(loaded: Any, build: str, given: torch.Tensor) -> None:
    own, ours, weights = loaded(getattr(torch_modules, build))
    assert torch.equal(ours(given), own(given))
    assert not ours.training
    names = [name for name, _ in own.named_parameters()]
    assert [name for name, _ in ours.named_parameters()] == names
    for name, parameter in ours.named_parameters():
        assert parameter.data_ptr() == weights.on_device(name).address
        assert parameter.requires_grad is own.get_parameter(name).requires_grad


@pytest.mark.skipif(torch.cuda.is_available(), reason="this torch knows CUDA")
def test_a_torch_without_cuda_is_refused_with_the_way_out(
    shelf: DeviceShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = shelf.open(image_file(tmp_path, state()))
    monkeypatch.setattr(weights._attachment.region, "dlpack_device", (dlpack.CUDA, 0))
    with pytest.raises(NotSupportedError, match="finds no CUDA device here; install a build for CUDA"):
        trims_torch.state_dict(weights)


def test_tied_weights_are_one_parameter(loaded: Any) -> None:
    _, ours, _ = loaded(torch_modules.tied_model)
    assert ours.out.weight is ours.embedding.weight


def test_a_forward_pass_in_train_mode_writes_its_own_copy_of_the_statistics(
    loaded: Any, shelf: DeviceShelf, tmp_path: Path
) -> None:
    own, ours, _ = loaded(torch_modules.conv_net)
    for module in (own.train(), ours.train()):
        module(IMAGES)
    assert torch.equal(ours.body[1].running_mean, own.body[1].running_mean)
    assert torch.equal(ours.eval()(IMAGES), own.eval()(IMAGES))
    assert shelf.bytes_of(tmp_path / "m.image") == (tmp_path / "m.image").read_bytes()


def test_a_gradient_step_works_on_a_writable_module(loaded: Any, shelf: DeviceShelf, tmp_path: Path) -> None:
    own, ours, _ = loaded(torch_modules.conv_net, writable=True)
    for module in (own, ours):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        module(IMAGES).sum().backward()
        optimizer.step()
    assert torch.equal(ours.head.weight, own.head.weight)
    assert shelf.bytes_of(tmp_path / "m.image") == (tmp_path / "m.image").read_bytes()


def test_a_transformers_bert_gives_the_frameworks_own_outputs(loaded: Any) -> None:
    pytest.importorskip("transformers")
    own, ours, _ = loaded(torch_modules.tiny_bert)
    assert torch.equal(ours(WORDS).last_hidden_state, own(WORDS).last_hidden_state)


def test_buffers_that_no_weights_are_for_follow_the_parameters(shelf: DeviceShelf, tmp_path: Path) -> None:
    own, _ = with_skeleton(tmp_path, torch_modules.tied_model)
    bare = shelf.open(image_file(tmp_path, own.state_dict(), "bare"))
    moved: list[torch.device] = []

    class Position(torch.Tensor):
        device = torch.device("meta", 1)  # anything but the weights'
        is_meta = False

        def to(self, device: torch.device) -> torch.Tensor:  # type: ignore[override]
            moved.append(device)
            return self.as_subclass(torch.Tensor)

    built = torch_modules.tied_model().eval()
    built.positions = built.positions.as_subclass(Position)
    ours = trims_torch.load_into(built, bare)
    assert moved == [torch.device("cpu")]
    assert torch.equal(ours(WORDS), own(WORDS))
    with torch.device("meta"):
        unknown = torch_modules.tied_model()
    with pytest.raises(CallerError, match="'positions' are in no state dict"):
        trims_torch.load_into(unknown, bare)


# -- workspace --------------------------------------------------------------------------------------------------


def test_what_a_forward_pass_takes_is_measured_and_told(
    shelf: DeviceShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, told = shelf.open(image_file(tmp_path, state())), []
    weights._on_report = told.append
    asked: list[Any] = []
    peaks = iter([700])
    monkeypatch.setattr(weights._attachment.region, "dlpack_device", (dlpack.CUDA, 3))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", asked.append)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda number: 300 if number == 3 else 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda number: next(peaks))
    with trims_torch.measured_workspace(weights):
        assert asked == [3]
    assert told == [400]
    with pytest.raises(ValueError, match="mine"), trims_torch.measured_workspace(weights):
        raise ValueError("mine")
    assert told == [400], "what failed tells nothing of what it needs"


def test_workspace_is_measured_on_devices_that_torch_measures(shelf: DeviceShelf, tmp_path: Path) -> None:
    path = image_file(tmp_path, state())
    with (
        Weights.map_file(path) as weights,
        pytest.raises(NotSupportedError, match="lies at disk; workspace"),
        trims_torch.measured_workspace(weights),
    ):
        pass
    with pytest.raises(NotSupportedError, match="CUDA"), trims_torch.measured_workspace(shelf.open(path)):
        pass


@pytest.mark.parametrize(
    "kinds", [["Written", "Plain"], ["Followed", "LastFirst"], ["Versioned", "Extra"], ["LastFirst"]]
)
def test_a_module_with_a_way_of_its_own_loads_on_a_device_as_alone(
    kinds: list[str], shelf: DeviceShelf, tmp_path: Path
) -> None:
    state = torch_ways.trained(kinds).state_dict()
    path = image_file(tmp_path, state, module="torch_ways:build", module_args={"kinds": kinds})
    wanted = torch_ways.loaded(state, kinds)
    weights = shelf.open(path)
    torch_ways.assert_alike(trims_torch.module(weights, trust_program=True), wanted)
    torch_ways.assert_alike(trims_torch.load_into(torch_ways.build(kinds), weights, strict=False).eval(), wanted)
