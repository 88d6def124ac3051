"""Requests for a model of torch on a device, and the spares that an endpoint has there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from looking import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from endpoints import Endpoint


def conv_net_artifact(folder: Path) -> dict[str, Any]:
    """Save the weights of the small network, and return its artifact."""
    from safetensors.torch import save_file

    from trims.testing.torch_modules import conv_net

    save_file(conv_net().state_dict(), folder / "m.safetensors")
    return {"path": str(folder / "m.safetensors"), "options": {"module": "trims.testing.torch_modules:conv_net"}}


def ask(endpoint: Endpoint, name: str, **parameters: Any) -> tuple[int, dict[str, Any]]:
    image = np.linspace(-1, 1, 48).tolist()
    tensor = {"name": "image", "shape": [1, 3, 4, 4], "datatype": "FP32", "data": image}
    status, answer = endpoint.ask("POST", f"/v2/models/{name}/infer", {"inputs": [tensor], "parameters": parameters})
    return status, answer


def answered(endpoint: Endpoint, name: str, **parameters: Any) -> dict[str, Any]:
    status, answer = ask(endpoint, name, **parameters)
    assert status == 200, answer
    found: dict[str, Any] = answer["parameters"]
    return found


def spares(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = endpoint.ask("GET", "/state")[1]["device_spares"]
    return found


def waiting(endpoint: Endpoint, *models: str) -> list[dict[str, Any]]:
    wait_until(lambda: sorted(each["model"] for each in spares(endpoint)) == sorted(models), f"not {models} wait")
    return spares(endpoint)
