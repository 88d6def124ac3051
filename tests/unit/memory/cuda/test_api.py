"""The protocol of a CUDA driver: the real one and the fake have the same calls with the same parameters."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import trims
from trims.memory.cuda.api import Cuda, Device
from trims.testing.fake_cuda import FakeCuda

PACKAGE = Path(trims.__file__).parent


def calls_of(file: str, name: str) -> dict[str, list[str]]:
    """Methods of a class and their parameters, without importing what the class needs."""
    tree = ast.parse((PACKAGE / file).read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found = classes[name]
    inherited = [calls_of(file, base.id) for base in found.bases if isinstance(base, ast.Name) and base.id in classes]
    calls = {call: parameters for each in inherited for call, parameters in each.items()}
    return calls | {
        node.name: [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
        for node in found.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


@pytest.mark.parametrize(
    ("protocol", "least", "file", "name"),
    [
        ("Cuda", 25, "memory/cuda/bindings.py", "Driver"),
        ("Cuda", 25, "testing/fake_cuda.py", "FakeCuda"),
        ("Borrowing", 15, "memory/cuda/borrower.py", "BorrowerDriver"),
    ],
)
def test_a_driver_has_every_call_of_the_protocol_with_its_parameters(
    protocol: str, least: int, file: str, name: str
) -> None:
    wanted, found = calls_of("memory/cuda/api.py", protocol), calls_of(file, name)
    assert len(wanted) > least
    assert {call: found.get(call) for call in wanted} == wanted


def test_every_call_of_the_protocol_says_what_it_does() -> None:
    calls = [member for name, member in inspect.getmembers(Cuda, inspect.isfunction) if not name.startswith("_")]
    assert all(call.__doc__ for call in calls)
    assert "free_bytes" in calls_of("testing/fake_cuda.py", FakeCuda.__name__), "what a survey asks of a stand-in"


def test_a_device_shares_memory_every_way_and_has_no_peers_unless_it_says_otherwise() -> None:
    device = Device("GPU-1", "Fake", 1)
    assert (device.vmm, device.ipc, device.read_only_registration, device.peers) == (True, True, True, ())
