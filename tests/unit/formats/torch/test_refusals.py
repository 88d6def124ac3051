"""Checkpoints with more than tensors: what they hold where is named, and the way out works."""

# fault (damage): classes in a checkpoint -> `bad_artifact` with class, key and a command that saves the weights;
# nothing is run

from __future__ import annotations

import argparse
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path, PosixPath
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from torch_files import Trap, image_of, saved  # noqa: E402

from trims.core.errors import ArtifactError  # noqa: E402
from trims.formats.torch.refusals import explain  # noqa: E402
from trims.testing.torch_modules import conv_net  # noqa: E402

LAYER = torch.nn.Linear(2, 2)
#: The checkpoint's value, and what is said of it.
HELD: dict[str, tuple[Any, str]] = {
    "arguments": (
        {"state_dict": LAYER.state_dict(), "args": argparse.Namespace(a=1)},
        "argparse.Namespace under 'args'",
    ),
    "a NumPy scalar": ({"net": LAYER.state_dict(), "best": np.float64(3)}, r"a NumPy scalar \(numpy.*\) under 'best'"),
    "a path among others": (
        {**LAYER.state_dict(), "hyper": {"layers": [1, {"dir": PosixPath("/x")}]}},
        "pathlib.PosixPath under 'hyper.layers.1.dir'",
    ),
    "a module": ({"model": conv_net(), "epoch": 3}, r"trims\.testing\.torch_modules\.ConvNet under 'model'"),
    "a whole module": (conv_net(), r"it is a whole trims\.testing\.torch_modules\.ConvNet"),
}


def refusal(path: Path) -> str:
    with pytest.raises(ArtifactError) as caught:
        image_of(path)
    return str(caught.value)


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("case", HELD)
def test_what_a_checkpoint_holds_beside_tensors_is_named_with_its_place(
    tmp_path: Path, case: str, zip_format: bool
) -> None:
    value, words = HELD[case]
    told = refusal(saved(tmp_path, value, _use_new_zipfile_serialization=zip_format))
    assert re.search(rf"not a checkpoint of tensors only: .*{words}", told)
    assert "\n" not in told


def run_remedy(told: str) -> None:
    """Run the command that a refusal gives."""
    end = told.index("; or let the file's code") if "; or let the file's code" in told else len(told)
    command = shlex.split(told[told.index("python -c ") : end])
    subprocess.run([sys.executable, *command[1:]], check=True, timeout=100)


def test_weights_as_numpy_arrays_are_saved_as_tensors_by_the_command(tmp_path: Path) -> None:
    arrays = {name: value.numpy() for name, value in LAYER.state_dict().items()}
    told = refusal(saved(tmp_path, {"state_dict": arrays}))
    run_remedy(told)
    assert list(image_of(tmp_path / "m-weights.pt").layout.tensors) == list(LAYER.state_dict())


def test_the_parts_that_the_command_leaves_are_named(tmp_path: Path) -> None:
    parts = {"gen": LAYER.state_dict(), "disc": LAYER.state_dict(), "args": argparse.Namespace(a=1)}
    assert "of its parts the first; the others are disc" in refusal(saved(tmp_path, parts))


def test_a_checkpoint_of_no_tensors_gets_no_command(tmp_path: Path) -> None:
    told = refusal(saved(tmp_path, {"args": argparse.Namespace(a=1)}))
    assert "no tensors were found" in told
    assert "torch.save" not in told


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_torchscript_archive_is_named_and_its_weights_saved_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(path))
    told = refusal(path)
    assert "it is a TorchScript archive" in told
    run_remedy(told)
    assert list(image_of(tmp_path / "m-weights.pt").layout.tensors) == ["weight", "bias"]


@pytest.mark.filterwarnings("ignore::torch.serialization.SourceChangeWarning")
@pytest.mark.parametrize("case", ["arguments", "a path among others", "a whole module"])
def test_the_command_that_a_refusal_gives_saves_the_weights_alone(tmp_path: Path, case: str) -> None:
    value, _ = HELD[case]
    run_remedy(refusal(saved(tmp_path, value)))
    whole = conv_net() if case == "a whole module" else LAYER
    assert list(image_of(tmp_path / "m-weights.pt").layout.tensors) == list(whole.state_dict())


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
def test_a_checkpoint_is_explained_without_running_what_it_names(tmp_path: Path, zip_format: bool) -> None:
    trap = tmp_path / "trap"
    path = saved(tmp_path, {"x": {Trap(str(trap)): 1}, "y": Trap(str(trap))}, _use_new_zipfile_serialization=zip_format)
    assert "it holds posix.mkdir under 'x'" in refusal(path)
    assert not trap.exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps(7), b"PK\x03\x04", b"\x80\x02]q\x00h\x00a."])
def test_a_checkpoint_that_cannot_be_read_again_is_explained_by_what_torch_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.pt"
    path.write_bytes(content)
    assert explain(path, "x\nWeightsUnpickler error: Unsupported operand 149\n").startswith("Unsupported operand 149; ")
    assert explain(path, "GLOBAL a.b was not an allowed global").startswith("it holds a.b; ")


def test_a_value_that_holds_itself_is_searched_once(tmp_path: Path) -> None:
    loop: dict[str, Any] = {"w": torch.ones(1)}
    loop["again"] = [loop]
    loop["args"] = argparse.Namespace(loop=loop)
    assert "argparse.Namespace under 'args'" in refusal(saved(tmp_path, loop))
