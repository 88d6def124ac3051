"""The script that a shell completes with: it is run by a real bash, and zsh reads it."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import shtab

from trims.cli import completion
from trims.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

#: Stands for the command: what `trims list --names` and `trims env list --names` print.
_LIST = r"""trims() { case "$*" in
    'list --names') printf 'bert-base\nbert-large\nresnet50\nroberta\nroberta@1\nroberta@stable\n' ;;
    'env list --names') printf 'torch-2.4.1-py311-0a\ntorch-2.5.0-py311-0b\n' ;;
esac; }"""


def completions(script: str, *words: str) -> list[str]:
    """Return the words that bash offers for the last word."""
    typed = " ".join(f"'{word}'" for word in ("trims", *words))
    ask = f'COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _shtab_trims; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "-c", f"{_LIST}\n{script}\n{ask}"], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


@pytest.fixture(scope="module")
def script() -> str:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as told:
        main(["completion", "bash"])
    return told.getvalue()


@pytest.mark.parametrize("command", ["show", "load", "evict", "pin", "unpin", "rm"])
def test_names_of_models_are_completed(script: str, command: str) -> None:
    assert completions(script, command, "bert") == ["bert-base", "bert-large"]


def test_versions_and_labels_of_a_model_are_completed(script: str) -> None:
    assert completions(script, "alias", "rob") == ["roberta", "roberta@1", "roberta@stable"]


@pytest.mark.parametrize("action", ["rm", "check"])
def test_names_of_environments_are_completed(script: str, action: str) -> None:
    assert completions(script, "env", action, "torch-2.5") == ["torch-2.5.0-py311-0b"]


def test_places_are_completed(script: str) -> None:
    assert completions(script, "load", "resnet50", "--place", "g") == ["gpu", "gpu:0"]


def test_commands_and_options_are_completed(script: str) -> None:
    assert completions(script, "evi") == ["evict"]
    assert completions(script, "evict", "--dr") == ["--drain"]


def test_files_are_completed(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert.yaml").touch()
    assert completions(script, "add", "be") == ["bert.yaml"]
    assert {shell: shtab.FILE[shell] for shell in completion.FILES} == completion.FILES


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_there_is_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    told = capsys.readouterr().out
    assert "evict" in told
    if shutil.which(shell):
        read = subprocess.run([shell, "-n"], input=told, capture_output=True, text=True, check=False)
        assert read.returncode == 0, read.stderr
