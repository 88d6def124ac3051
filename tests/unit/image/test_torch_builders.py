"""Building the module that weights belong to."""

from __future__ import annotations

import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from trims.core.errors import ArtifactError, NotSupportedError  # noqa: E402
from trims.image.torch_builders import NoRandomInitialization, build_module  # noqa: E402


def convolutions(channels: int = 3) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(channels, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2))


def a_number() -> int:
    return 3


def test_the_builder_is_called_with_its_arguments() -> None:
    built = build_module(f"{__name__}:convolutions", {"channels": 5}, "m")
    assert built.state_dict()["0.weight"].shape == (4, 5, 3, 3)


def test_the_module_is_not_filled_with_random_numbers_that_would_be_overwritten() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with NoRandomInitialization():
        convolutions()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["BertModel", "GPT2LMHeadModel", "LlamaForCausalLM"])
def test_no_module_of_transformers_draws_a_random_number(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = getattr(transformers, name)
    before = torch.get_rng_state()
    with NoRandomInitialization():
        model(model.config_class(**small))
    assert torch.equal(torch.get_rng_state(), before)


class Drawn(torch.nn.Module):  # type: ignore[misc]
    """Module whose buffers and attributes follow from random numbers, or from the first values of its weights."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        values = {
            "a buffer": lambda: torch.rand(4), "an order": lambda: torch.randperm(4).float(),
            "a mask": lambda: (self.linear.weight > 0).float(), "a copy": lambda: self.linear.weight.data.clone() * 2,
            "a norm": lambda: self.linear.weight.norm(dim=0).detach(),
            "dropped": lambda: torch.nn.functional.dropout(torch.ones(4)),
        }  # fmt: skip
        self.register_buffer("own", values[how](), persistent=False)
        self.number = float(self.own.sum())


def drawn(how: str) -> torch.nn.Module:
    torch.manual_seed(3)
    return Drawn(how)


@pytest.mark.parametrize("how", ["a buffer", "an order", "a mask", "a copy", "a norm", "dropped"])
def test_what_follows_from_random_numbers_is_as_the_builder_alone_makes_it(how: str) -> None:
    built, alone = build_module(f"{__name__}:drawn", {"how": how}, "m"), drawn(how)
    assert torch.equal(built.own, alone.own)
    assert built.number == alone.number


def layered() -> torch.nn.Module:
    made = torch.nn.Sequential(
        torch.nn.Embedding(9, 8, padding_idx=0), torch.nn.TransformerEncoderLayer(8, 2), torch.nn.BatchNorm1d(8)
    )
    made[0].weight.data.normal_(0, 0.02)
    return made.half()


def test_usual_layers_are_built_without_a_random_number() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    build_module(f"{__name__}:layered", {}, "m")
    assert torch.equal(torch.get_rng_state(), before)


def test_buffers_have_the_values_that_their_module_gives_them() -> None:
    with NoRandomInitialization():
        built = convolutions()
    assert torch.equal(built.get_buffer("1.running_var"), torch.ones(4))


def breaks(how: str) -> torch.nn.Module:
    if how == "interrupted":
        raise KeyboardInterrupt
    if how == "exits":
        sys.exit(3)
    if how == "lacks a module":
        import no_such_module_of_a_builder  # type: ignore[import-not-found]  # noqa: F401
    raise RuntimeError("boom")


@pytest.mark.parametrize(("how", "words"), [("fails", "raised RuntimeError: boom"), ("exits", "raised SystemExit: 3")])
def test_what_a_builder_raises_is_the_cause_of_an_artifact_error(how: str, words: str) -> None:
    with pytest.raises(ArtifactError, match=f"m: .*:breaks {words}") as raised:
        build_module(f"{__name__}:breaks", {"how": how}, "m")
    assert isinstance(raised.value.__cause__, (RuntimeError, SystemExit))


def test_a_builder_that_lacks_a_module_says_where() -> None:
    with pytest.raises(NotSupportedError, match=r"breaks lacks a module in .*pip install no_such_module_of_a_builder"):
        build_module(f"{__name__}:breaks", {"how": "lacks a module"}, "m")


def test_an_interrupt_ends_a_builder() -> None:
    with pytest.raises(KeyboardInterrupt):
        build_module(f"{__name__}:breaks", {"how": "interrupted"}, "m")


def set_and_build() -> torch.nn.Module:
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    return torch.nn.Linear(2, 2)


def test_what_a_builder_sets_for_the_process_is_undone() -> None:
    built = build_module(f"{__name__}:set_and_build", {}, "m")
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == (torch.float32, True)
    assert built.weight.dtype is torch.float64


@pytest.mark.parametrize(
    ("call", "arguments", "error", "words"),
    [
        ("convolutions", {}, ArtifactError, "m: option module must be 'package.module:function'"),
        (7, {}, ArtifactError, "m: option module must be"),
        (f"{__name__}:convolutions", [1], ArtifactError, "module_args a map"),
        (f"{__name__}:missing", {}, NotSupportedError, "m: the module builder '.*:missing' cannot be loaded"),
        ("no_such_package:build", {}, NotSupportedError, "No module named 'no_such_package'"),
        (f"{__name__}:a_number", {}, ArtifactError, "returned a int, not a torch.nn.Module"),
    ],
)
def test_a_builder_that_does_not_work_is_named(call: Any, arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        build_module(call, arguments, "m")
