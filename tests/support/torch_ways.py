"""Modules that load state dicts in ways of their own, alone and in pairs, and a comparison of what came of it.

A copy of this file lies beside the manifests of tests, whose children import `build` from it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Plain(nn.Linear):  # type: ignore[misc]  # torch is not followed
    """Takes its tensors as they are."""

    def __init__(self) -> None:
        super().__init__(3, 3)


class Scaled(Plain):
    """Has a hook that gives other values."""

    def __init__(self) -> None:
        super().__init__()
        self._register_load_state_dict_pre_hook(self._scale)

    def _scale(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"] * 2


class Written(Plain):
    """Has a hook that writes to the tensors it is given."""

    def __init__(self) -> None:
        super().__init__()
        self._register_load_state_dict_pre_hook(self._write)

    def _write(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[f"{prefix}weight"].mul_(3)


class Widened(Plain):
    """Has a hook that gives another dtype, whose values are cast."""

    def __init__(self) -> None:
        super().__init__()
        self._register_load_state_dict_pre_hook(self._widen)

    def _widen(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"].double() / 3


class Turned(Plain):
    """Has a hook that gives a transposed view."""

    def __init__(self) -> None:
        super().__init__()
        self._register_load_state_dict_pre_hook(self._turn)

    def _turn(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"].t()


class Counting(Plain):
    """Has a hook that changes nothing of the module."""

    def __init__(self) -> None:
        super().__init__()
        self._register_load_state_dict_pre_hook(self._look)

    def _look(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        assert f"{prefix}weight" in state


class Halved(Plain):
    """Halves its weight after it was loaded."""

    def _load_from_state_dict(self, *given: Any) -> None:
        super()._load_from_state_dict(*given)
        with torch.no_grad():
            self.weight.mul_(0.5)


class Renamed(Plain):
    """Knows a tensor by an older name."""

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *given: Any) -> None:
        if f"{prefix}old" in state:
            state[f"{prefix}bias"] = state.pop(f"{prefix}old")
        super()._load_from_state_dict(state, prefix, *given)


class Versioned(Plain):
    """Turns the sign of what an older version of it saved."""

    _version = 2

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, local: dict[str, Any], *given: Any) -> None:
        if local.get("version", 1) < 2:
            state[f"{prefix}weight"] = -state[f"{prefix}weight"]
        super()._load_from_state_dict(state, prefix, local, *given)


class Followed(Plain):
    """Keeps what it computed of its weight, as a buffer outside the state dict and as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()), persistent=False)
        self.most = 0.0
        self.register_load_state_dict_post_hook(_follow)


def _follow(module: Any, _: Any) -> None:
    module.total = module.weight.detach().sum()
    module.most = float(module.weight.detach().max())


class Seeded(Plain):
    """Has a buffer that no state dict has, and a number, of random numbers that follow those of its weights."""

    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            super().__init__()
            self.register_buffer("own", torch.rand(3), persistent=False)
            self.number = float(torch.rand(1))


class Extra(Plain):
    """Has a tensor as extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(2)

    def get_extra_state(self) -> Any:
        """Return the tensor."""
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        """Take the tensor."""
        self.seen = state.clone()


class Doubled(Extra):
    """Doubles its extra state."""

    def set_extra_state(self, state: Any) -> None:
        """Take the tensor twice."""
        self.seen = state * 2


class LastFirst(nn.Module):  # type: ignore[misc]
    """A convolution whose weight lies channels last, and one that is expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 2, 3).to(memory_format=torch.channels_last)
        self.deep = nn.Conv2d(4, 4, 3, groups=4).to(memory_format=torch.channels_last)
        self.register_buffer("wide", torch.arange(3.0).expand(2, 3), persistent=False)


KINDS = {
    kind.__name__: kind
    for kind in (
        Plain, Scaled, Written, Widened, Turned, Counting, Halved, Renamed, Versioned, Followed, Extra, Doubled,
        LastFirst,
        Seeded,
    )
}  # fmt: skip


class Whole(nn.Sequential):  # type: ignore[misc]
    """Has a way of its own for all of it."""

    def load_state_dict(self, state: Any, strict: bool = True) -> Any:
        """Load, and shift the first weight."""
        found = super().load_state_dict(state, strict=strict)
        with torch.no_grad():
            next(self.parameters()).add_(1)
        return found


def build(kinds: list[str], *, whole: bool = False) -> nn.Module:
    """Return modules of these kinds in a row."""
    parts = [KINDS[kind]() for kind in kinds]
    return Whole(*parts) if whole else nn.Sequential(*parts)


def trained(kinds: list[str]) -> nn.Module:
    """Return such a module with other values than a new one has."""
    made = build(kinds)
    random = torch.Generator().manual_seed(len(kinds) * 7 + sum(map(len, kinds)))
    with torch.no_grad():
        for each in made.parameters():
            each.copy_(torch.rand(each.shape, generator=random) - 0.5)
    for each in made.modules():
        if isinstance(each, Extra):
            each.seen = torch.tensor([3.0, 4.0])
    return made


def loaded(state: Any, kinds: list[str], *, whole: bool = False) -> nn.Module:
    """Return such a module as torch alone loads it."""
    made = build(kinds, whole=whole)
    made.load_state_dict(state)
    return made.eval()


def assert_alike(found: nn.Module, wanted: nn.Module) -> None:
    """Compare all tensors bit for bit, with their strides, and what modules keep beside them."""
    assert [type(each) for each in found.modules()] == [type(each) for each in wanted.modules()]
    assert [each.training for each in found.modules()] == [each.training for each in wanted.modules()]
    for list_of in ("named_parameters", "named_buffers"):
        ours, theirs = (dict(getattr(each, list_of)(remove_duplicate=False)) for each in (found, wanted))
        assert list(ours) == list(theirs)
        for name, tensor in theirs.items():
            _assert_same(name, ours[name], tensor)
    for ours, theirs in zip(found.modules(), wanted.modules(), strict=True):
        assert getattr(ours, "most", None) == getattr(theirs, "most", None)
        if hasattr(theirs, "seen"):
            _assert_same("seen", ours.seen, theirs.seen)


def _assert_same(name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    told = [(each.dtype, each.shape, each.stride(), each.requires_grad, type(each)) for each in (found, wanted)]
    assert told[0] == told[1], name
    assert found.detach().contiguous().numpy().tobytes() == wanted.detach().contiguous().numpy().tobytes(), name
