"""`trims manifest init` and `trims validate`: no daemon, and what is written is registered as it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import mxnet_files
import numpy as np
import pytest
from tiny_models import named, save

from trims.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon


def make(kind: str, folder: Path, checkpoint: Callable[..., Path]) -> Path:
    """An artifact of a kind."""
    if kind == "onnx":
        from onnx_files import linear

        return linear(folder)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        torch.save({"w": torch.ones(2)}, folder / "model.pt")
        return folder / "model.pt"
    if kind == "mxnet":
        return mxnet_files.save(folder, {"arg:w": mxnet_files.array("F32", (2, 3))})
    if kind == "npz":
        np.savez(folder / "a.npz", w=np.ones(2))
        return folder / "a.npz"
    return checkpoint("model").parent if kind == "folder" else checkpoint("one")


@pytest.mark.parametrize("kind", ["safetensors", "onnx", "torch", "mxnet", "npz", "folder"])
def test_what_init_writes_is_valid_and_is_registered(
    daemon: Daemon, folder: Path, checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    artifacts = folder / "artifacts"
    artifacts.mkdir()
    made = make(kind, folder, checkpoint)
    if made != folder:
        target = artifacts
        for each in [path for path in folder.iterdir() if path.is_file()]:
            each.rename(target / each.name)
        made = artifacts / made.name
    else:
        (folder / "model.safetensors").rename(artifacts / "model.safetensors")
        made = artifacts
    manifest = folder / "written.yaml"
    assert main(["manifest", "init", str(made), "--name", "m", "-o", str(manifest)]) == 0
    assert main(["validate", str(manifest)]) == 0
    assert f"{manifest}: ok" in capsys.readouterr().out
    assert main(["--runtime-dir", str(daemon.config.runtime_dir), "add", str(manifest)]) == 0


def test_the_folder_of_a_hugging_face_model_is_written_checked_and_registered(
    daemon: Daemon, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    model, manifest = save(named("BertForSequenceClassification"), folder / "models" / "m"), folder / "written.yaml"
    add = ["--runtime-dir", str(daemon.config.runtime_dir), "add"]
    assert main(["manifest", "init", str(model), "-o", str(manifest)]) == 0
    assert main(["validate", str(manifest)]) == 0
    assert f"{manifest}: ok" in capsys.readouterr().out
    assert main([*add, str(manifest)]) == 0
    (model / "config.json").write_text("{")
    assert main([*add, str(model), "--name", "broken"]) != 0
    assert f"{model / 'config.json'} is no JSON" in capsys.readouterr().err


def test_a_file_that_is_there_is_kept_unless_it_is_forced(
    folder: Path, checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    target = folder / "m.yaml"
    target.write_text("mine")
    words = ["manifest", "init", str(checkpoint("m")), "-o", str(target)]
    assert main(words) == 1
    assert "exists; choose another name (-o FILE), or write over it (--force)" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert main([*words, "--force"]) == 0
    assert "name: m\n" in target.read_text()


def test_the_name_of_the_file_is_the_model_s_and_standard_output_is_a_file(
    folder: Path, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["manifest", "init", str(checkpoint("m"))]) == 0
    assert (folder / "m.yaml").exists()
    capsys.readouterr()
    assert main(["manifest", "init", str(checkpoint("m")), "-o", "-"]) == 0
    assert "name: m\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hf://org/name"], "is an address, which `trims add` registers"),
        (["/nowhere/at/all"], "/nowhere/at/all does not exist"),
        (["{artifact}", "-o", "m.txt"], "end it with .yaml"),
        (["{artifact}", "-o", "/nowhere/m.yaml"], "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_told(
    checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    artifact = str(checkpoint("m"))
    assert main(["manifest", "init", *(word.format(artifact=artifact) for word in words)]) == 1
    assert message in capsys.readouterr().err


def test_validate_prints_lines_or_json_and_ends_with_a_status(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.yaml").write_text("name: a\nartifact: {model: b}")
    (folder / "b.yaml").write_text("name: b\nartifact: {model: b, pth: x}")
    files = [str(folder / "a.yaml"), str(folder / "b.yaml")]
    assert main(["validate", *files]) == 1
    ok, wrong = capsys.readouterr().out.splitlines()
    assert ok == f"{files[0]}: ok"
    assert wrong.startswith(f"{files[1]}:2: artifact: unknown field 'pth'; did you mean 'path'?")
    assert main(["validate", "--json", *files]) == 1
    assert [each["ok"] for each in json.loads(capsys.readouterr().out)] == [True, False]
