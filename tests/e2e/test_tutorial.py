"""The tutorial: every command in its order, and what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 120
#: Daemons that a test has started.
SERVING: list[subprocess.Popen[bytes]] = []


def steps() -> Iterator[tuple[str, str, list[str]]]:
    """Yield the language, the code and the lines that follow of each step of the tutorial."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if match[1] == "python":
            yield "python", match[2], re.findall(r"  # (.*)$", match[2], re.MULTILINE)
            continue
        for typed in re.split(r"^\$ ", match[2], flags=re.MULTILINE)[1:]:
            command, *printed = typed.splitlines()
            yield "console", command, printed


def pattern(lines: list[str]) -> str:
    """Return an expression for what is printed: any number for a number, and anything for three dots."""
    words = []
    for word in " ".join(lines).split():
        parts = re.split(r"(\.\.\.|[0-9a-f]{32}|-?\d+(?:\.\d+)*)", word)
        anything = {"...": r"[\s\S]*"}
        words.append(
            "".join(
                anything.get(part, r"[-0-9a-f.]+") if number % 2 else re.escape(part)
                for number, part in enumerate(parts)
            )
        )
    return r"\s*".join(words)


@pytest.fixture
def world(folder: Path) -> Iterator[dict[str, str]]:
    """Variables of a folder with the model and the program, in which a daemon is ended."""
    (program,) = (lines for _, code, lines in steps() if code == "cat embed.py")
    (folder / "embed.py").write_text("\n".join(program) + "\n")
    env = {
        **os.environ, "TRIMS_RUNTIME_DIR": str(folder / "run"), "TRIMS_STATE_DIR": str(folder / "state"),
        "TRIMS_ENDPOINT": "yes", "TRIMS_ENDPOINT_FLAGS": "--port 0 --grpc-port none", "COLUMNS": "100",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    yield env
    subprocess.run(["trims", "shutdown", "--purge"], env=env, capture_output=True, timeout=WAIT_S, check=False)
    for each in SERVING:
        each.wait(WAIT_S)
    SERVING.clear()


def printed_by(command: str, folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    shown = [line for line in done.stderr.splitlines() if line.startswith(("trims exec: ", "the daemon "))]
    return "\n".join([*shown, *(line.rstrip() for line in done.stdout.splitlines())])


def await_printed(command: str, words: str, folder: Path, env: dict[str, str]) -> str:
    """Return what a command prints once it prints these words."""
    until = time.monotonic() + WAIT_S
    while True:
        found = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False
        ).stdout
        if match := re.search(words, found):
            return match[1]
        assert time.monotonic() < until, found
        time.sleep(0.1)


@pytest.mark.timeout(300)
def test_every_command_of_the_tutorial_prints_what_stands_there(folder: Path, world: dict[str, str]) -> None:
    pytest.importorskip("transformers")
    port = ""
    for language, code, lines in steps():
        if language == "python":
            printed = printed_by(f"python -c '{code}'", folder, world)
        elif code.endswith("&"):
            command = code.removesuffix("&").split()
            SERVING.append(subprocess.Popen(command, cwd=folder, env=world, stderr=subprocess.DEVNULL))
            port = await_printed("trims status", r"endpoint: http://127\.0\.0\.1:(\d+)", folder, world)
            continue
        else:
            if code.startswith("trims exec") and "forked" in lines[0]:
                await_printed(f"{code} 2>&1", "(forked from a template)", folder, world)
            printed = printed_by(code.replace("localhost:8000", f"127.0.0.1:{port}"), folder, world)
        assert re.search(pattern(lines), printed), f"{code}\n{printed}\n{pattern(lines)}"
