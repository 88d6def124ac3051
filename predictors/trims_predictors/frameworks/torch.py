"""The predictor of PyTorch models: a module over shared weights, called with the tensors of the request.

Inputs go to `forward` by name if it has arguments of these names, else in the order of the request. What it returns is
an output for each tensor: those of a mapping by their keys, others as the manifest's `outputs` name them, else `output`
or `output_0`, `output_1` and so on.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from trims_client.frameworks import torch as over_weights

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims_client.weights import Weights

    from trims_predictors.api import Arrays, Context


class TorchPredictor:
    """A module that the manifest's `artifact.options.module` builds, in eval mode."""

    _module: torch.nn.Module
    #: Device of the module; the CPU for a subclass that builds one by itself.
    _device: torch.device = torch.device("cpu")
    _takes: frozenset[str]
    _names: tuple[str, ...]

    def load(self, weights: Weights, context: Context) -> None:
        """Build the module on the weights. Raises what `trims.torch.module` raises."""
        self._module = over_weights.module(weights)
        self._device = _device_of(self._module)
        self._takes = frozenset(inspect.signature(self._module.forward).parameters)
        self._names = tuple(each.name for each in context.outputs)

    def predict(self, inputs: Arrays) -> Arrays:
        """One forward pass without gradients."""
        tensors = {name: _to_device(_tensor(name, array), self._device) for name, array in inputs.items()}
        with torch.inference_mode():
            made = self._module(**tensors) if self._takes >= tensors.keys() else self._module(*tensors.values())
        return {name: _array(value) for name, value in _to_host(self._named(made)).items()}

    def rehearse(self, inputs: Arrays) -> Arrays:
        """Compile kernels for these shapes and take the memory of a run."""
        return self.predict(inputs)

    def _named(self, made: Any) -> dict[str, torch.Tensor]:
        if isinstance(made, Mapping):
            found = {str(name): value for name, value in made.items() if isinstance(value, torch.Tensor)}
            return (
                {name: found[name] for name in self._names}
                if self._names and found.keys() >= set(self._names)
                else found
            )
        values = [made] if isinstance(made, torch.Tensor) else [each for each in made if isinstance(each, torch.Tensor)]
        return dict(zip(self._output_names(len(values)), values, strict=True))

    def _output_names(self, count: int) -> Sequence[str]:
        if len(self._names) == count:
            return self._names
        return ["output"] if count == 1 else [f"output_{index}" for index in range(count)]

    def unload(self) -> None:
        """Let go of the module."""
        del self._module


def _device_of(module: torch.nn.Module) -> torch.device:
    """Return the device of a module's weights; that of the host for a module without any."""
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        return torch.device(tensor.device)
    return torch.device("cpu")


def _to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on the device, copied without a wait from pinned memory, which torch keeps for later requests."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def _to_host(outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return outputs in host memory: all are copied to pinned memory, and waited for once for each device."""
    found = {}
    devices = set()
    for name, value in outputs.items():
        found[name] = value.detach()
        if value.device.type == "cuda":
            found[name] = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            found[name].copy_(value.detach(), non_blocking=True)
            devices.add(value.device)
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return found


def _tensor(name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype == object:
        raise CallerError(f"the input {name!r} is text (BYTES), which torch has no tensors for")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(value: torch.Tensor) -> np.ndarray[Any, Any]:
    host = value.cpu()
    if host.dtype == torch.bfloat16:
        import ml_dtypes

        host = host.contiguous().view(torch.int16)
        bits: np.ndarray[Any, Any] = host.numpy()
        return bits.view(ml_dtypes.bfloat16)
    found: np.ndarray[Any, Any] = host.numpy()
    return found


def warm_up_template() -> None:
    """Forward passes with one thread, which start none (a process with threads cannot be forked safely)."""
    torch.set_num_threads(1)
    _forward()


def warm_up_on_device(weights: Weights) -> None:
    """Forward passes on the device of weights, which load the libraries of linear algebra and of convolutions."""
    _forward(over_weights.device_of(weights))


class _Threads:
    """The number of threads that PyTorch computes with in a predictor: what trims sets, unless model code chooses.

    Model code that sets a number and then puts back what was there has chosen nothing.
    """

    def __init__(self) -> None:
        self._set = torch.set_num_threads
        self._shared = 0
        self._chosen: int | None = None

    def choose(self, threads: int) -> None:
        """`torch.set_num_threads` of model code."""
        self._set(threads)
        puts_back = self._chosen not in (None, self._shared) and threads == self._shared
        self._chosen = None if puts_back else threads

    def share(self, before: int, threads: int) -> None:
        """Set the number, unless model code has chosen one, or now has another than `before`; 0: not set before."""
        if self._chosen is None and before in (0, torch.get_num_threads()):
            self._set(threads)
            self._shared = threads

    def watch(self) -> None:
        """Learn from now on what model code chooses, which may be the number that is set just then."""
        torch.set_num_threads = self.choose


_threads = _Threads()


def warm_up(threads: int) -> None:
    """Forward passes that start the threads of this predictor."""
    _threads.share(0, threads)
    _forward()
    _threads.watch()


def share_threads(before: int, threads: int) -> None:
    """Have torch compute with `threads` threads from now on, unless model code has changed the number from `before`.

    `before` is 0 if no number was set yet.
    """
    _threads.share(before, threads)
    _threads.watch()


def _forward(device: torch.device | None = None) -> None:
    with torch.inference_mode(), torch.device(device or "cpu"):
        tokens = torch.nn.Embedding(8, 64)(torch.zeros((2, 16), dtype=torch.int64))
        hidden = torch.nn.functional.gelu(torch.nn.LayerNorm(64)(torch.nn.Linear(64, 64)(tokens)))
        torch.nn.functional.scaled_dot_product_attention(hidden, hidden, hidden).softmax(-1)
        image = torch.zeros((1, 3, 32, 32))
        torch.nn.functional.relu(torch.nn.BatchNorm2d(8).eval()(torch.nn.Conv2d(3, 8, 3, stride=2)(image))).mean()
