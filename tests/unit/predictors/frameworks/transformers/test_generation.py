"""Generated text: parameters, stop words, conversations, and parts that are the whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tiny_models import loaded, named, save
from trims_predictors.frameworks.transformers.generation import first_stop

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = ["generated_text", "finish_reason", "prompt_tokens", "completion_tokens"]


def request(*texts: str, **parameters: Any) -> dict[str, Any]:
    made = {name: np.array(value if isinstance(value, list) else [value]) for name, value in parameters.items()}
    words = np.array([each.encode() for each in texts], dtype=object)
    return {**({"text": words} if texts else {}), "return_full_text": np.array([False]), **made}


def generated(predictor: Any, *texts: str, **parameters: Any) -> list[str]:
    found = predictor.predict(request(*texts, **parameters))["generated_text"]
    return [each.decode() for each in found]


class Client:
    """Takes parts, for as long as it likes."""

    def __init__(self, leaves_after: int | None = None) -> None:
        self.parts: list[str] = []
        self.asked = 0
        self._leaves_after = leaves_after

    def __call__(self, outputs: Any) -> bool:
        self.asked += 1
        if outputs is not None:
            self.parts.append(outputs["generated_text"][0].decode())
        return self._leaves_after is None or self.asked < self._leaves_after


def test_the_tokens_of_an_answer_are_bounded_by_request_manifest_and_model(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor:
        found = predictor.predict_only(request("hello world", max_new_tokens=5, min_new_tokens=5), COUNTS)
        assert found["completion_tokens"].tolist() == [5]
        assert found["prompt_tokens"].tolist() == [2]
        assert found["finish_reason"].tolist() == [b"length"]
        with pytest.raises(CallerError, match="60"):
            generated(predictor, "hello", max_new_tokens=60)
        with pytest.raises(CallerError, match="60"):
            generated(predictor, " ".join(["cat"] * 60))
    with load("GPT2LMHeadModel", {"max_new_tokens": 3}) as predictor:
        assert predictor.predict_only(request("hello", min_new_tokens=3), COUNTS)["completion_tokens"].tolist() == [3]
        with pytest.raises(CallerError, match="allows 3"):
            generated(predictor, "hello", max_new_tokens=4)


def test_names_of_other_servers_mean_the_same(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor:
        assert generated(predictor, "hello", max_tokens=4) == generated(predictor, "hello", max_new_tokens=4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0), ("max_new_tokens", 1.5), ("temperature", -1.0), ("top_p", 0.0), ("top_p", 1.1),
        ("top_k", -1), ("num_beams", 0), ("seed", -1), ("repetition_penalty", 0.0), ("min_p", 2.0),
    ],
)  # fmt: skip
def test_a_parameter_out_of_its_range_is_refused(load: Any, name: str, value: Any) -> None:
    with load("GPT2LMHeadModel") as predictor, pytest.raises(CallerError, match=name):
        generated(predictor, "hello", **{name: value})


def test_an_unknown_parameter_and_one_of_the_wrong_type_are_refused(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor:
        for wrong in ({"creativity": 3}, {"temperature": ["hot"]}, {"max_new_tokens": [1, 2]}):
            with pytest.raises(CallerError, match=next(iter(wrong))):
                generated(predictor, "hello", **wrong)


def test_a_seed_repeats_and_no_seed_does_not(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor:
        sampled = [generated(predictor, "hello", max_new_tokens=20, temperature=1.5, seed=7) for _ in range(2)]
        assert sampled[0] == sampled[1]
        others = {generated(predictor, "hello", max_new_tokens=20, temperature=1.5)[0] for _ in range(4)}
        assert len(others) > 1
        greedy = {generated(predictor, "hello", max_new_tokens=20, temperature=0)[0] for _ in range(2)}
        assert len(greedy) == 1


def test_an_answer_ends_before_its_stop_word(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor:
        whole = generated(predictor, "hello world", max_new_tokens=10)[0]
        word = whole.split()[3]
        found = predictor.predict_only({**request("hello world", max_new_tokens=10), "stop": np.array([word])}, COUNTS)
        text = found["generated_text"][0].decode()
        assert text == whole[: whole.index(word)]
        assert found["finish_reason"].tolist() == [b"stop"]
        assert found["completion_tokens"][0] <= 5
        for wrong in ([""], ["x"] * 17, ["x" * 300]):
            with pytest.raises(CallerError, match="stop"):
                predictor.predict({**request("hello"), "stop": np.array(wrong)})


def test_the_first_of_several_stop_words_counts() -> None:
    assert first_stop("a cat sat", ["sat", "cat"]) == 2
    assert first_stop("a cat", ["dog"]) is None
    assert first_stop("a cat", []) is None


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration"])
def test_the_parts_of_an_answer_are_the_whole(load: Any, kind: str) -> None:
    with load(kind) as predictor:
        whole = generated(predictor, "hello world", max_new_tokens=12)[0]
        client = Client()
        final = predictor.predict_stream(request("hello world", max_new_tokens=12), COUNTS, client, streams=True)
        assert "".join(client.parts) == whole == final["generated_text"][0].decode()
        if whole:
            assert len(client.parts) > 1


def test_parts_hold_back_what_may_be_a_stop_word(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor:
        whole = generated(predictor, "hello world", max_new_tokens=10)[0]
        word = whole.split()[3]
        client = Client()
        asked = {**request("hello world", max_new_tokens=10), "stop": np.array([word])}
        predictor.predict_stream(asked, [], client, streams=True)
        assert "".join(client.parts) == whole[: whole.index(word)]


# fault (folders): a client leaves during generation -> the run ends within a token
@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_goes_away_ends_the_run_within_a_token(load: Any, streams: bool) -> None:
    with load("GPT2LMHeadModel") as predictor:
        client = Client(leaves_after=3)
        asked = request("hello world", max_new_tokens=40, min_new_tokens=40)
        found = predictor.predict_stream(asked, COUNTS, client, streams=streams)
        assert found["completion_tokens"][0] <= 4
        assert generated(predictor, "hello world", max_new_tokens=3)  # and the next request is answered


def test_a_stream_is_for_one_text_without_beams(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor:
        for asked in (request("a", "the"), request("the", num_beams=2)):
            with pytest.raises(CallerError, match="stream"):
                predictor.predict_stream(asked, [], Client(), streams=True)


def test_the_cache_of_a_request_is_its_own(load: Any) -> None:
    with load("LlamaForCausalLM") as predictor:
        alone = generated(predictor, "the cat", max_new_tokens=8)
        generated(predictor, "hello world this is some text", max_new_tokens=8)
        assert generated(predictor, "the cat", max_new_tokens=8) == alone


def test_a_text_without_tokens_is_refused(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor, pytest.raises(CallerError, match="no tokens"):
        generated(predictor, "")


def test_a_long_text_is_refused_before_it_is_read(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor, pytest.raises(CallerError, match="max_text_bytes"):
        generated(predictor, "cat " * 3_000_000)


def test_a_conversation_follows_the_template_of_its_tokenizer(tmp_path: Path) -> None:
    folder = save(named("GPT2LMHeadModel"), tmp_path / "m")
    plain = {"messages": np.array([json.dumps([{"role": "user", "content": "hello world"}])])}
    with loaded(folder) as predictor, pytest.raises(CallerError, match="chat template"):
        predictor.predict(plain)
    template = "{% for m in messages %}{% if m['role'] == 'bad' %}{{ raise_exception('no such role') }}{% endif %}"
    template += "{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}the {% endif %}"
    (folder / "chat_template.jinja").write_text(template)
    with loaded(folder) as predictor:
        found = predictor.predict_only({**plain, "max_new_tokens": np.array([4])}, COUNTS)
        assert found["prompt_tokens"].tolist() == [3]
        assert found["generated_text"][0].decode() == generated(predictor, "hello world the", max_new_tokens=4)[0]
        with pytest.raises(CallerError, match="no such role"):
            predictor.predict({"messages": np.array([json.dumps([{"role": "bad", "content": "x"}])])})
        with pytest.raises(CallerError, match="JSON"):
            predictor.predict({"messages": np.array(["no JSON"])})
        with pytest.raises(CallerError, match="no place for 'tools'"):
            predictor.predict({**plain, "tools": np.array([json.dumps([{"type": "function"}])])})
    (folder / "chat_template.jinja").write_text(template + "{% if tools %}cat {% endif %}")
    with loaded(folder) as predictor:
        asked = {**plain, "max_new_tokens": np.array([4])}
        found = predictor.predict_only({**asked, "tools": np.array([json.dumps([{"type": "function"}])])}, COUNTS)
        assert found["prompt_tokens"].tolist() == [4]


def test_weights_and_gradients_are_as_before_a_run(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor:
        generated(predictor, "hello", max_new_tokens=2)
        assert torch.is_grad_enabled()


def stating(folder: Path, **fields: Any) -> Path:
    """The folder, whose generation_config.json states these fields too."""
    file = folder / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return folder


def counted(predictor: Any, *texts: str, **parameters: Any) -> list[int]:
    found = predictor.predict_only(request(*texts, **parameters), COUNTS)["completion_tokens"]
    return [int(each) for each in found]


def test_the_folder_states_the_length_of_text_and_answer(tmp_path: Path) -> None:
    folder = stating(save(named("GPT2LMHeadModel"), tmp_path / "m"), max_length=5, eos_token_id=None)
    with loaded(folder) as predictor:
        assert counted(predictor, "hello", "the cat sat") == [4, 2]
        assert counted(predictor, "hello", max_new_tokens=7) == [7]
        for text in ("the cat sat on the", "the cat sat on the mat"):
            with pytest.raises(CallerError, match=r"max_length") as refused:
                generated(predictor, text)
            assert f"{len(text.split())} tokens" in str(refused.value)
            assert "allows 5 " in str(refused.value)
        assert counted(predictor, "the cat sat on the mat", max_new_tokens=2) == [2]
    with loaded(folder, {"max_new_tokens": 6}) as predictor:
        assert counted(predictor, "hello") == [6]
    with loaded(stating(folder, max_new_tokens=3)) as predictor:
        assert counted(predictor, "the cat sat on the mat") == [3]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_length_that_the_folder_does_not_state_is_no_limit(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor:
        assert counted(predictor, "hello", min_new_tokens=30)[0] > 30


def test_the_folder_states_the_length_of_an_answer_alone(tmp_path: Path) -> None:
    fields = {"max_length": 5, "eos_token_id": None, "forced_eos_token_id": None}
    folder = stating(save(named("BartForConditionalGeneration"), tmp_path / "m"), **fields)
    with loaded(folder) as predictor:
        assert counted(predictor, "the cat sat on the mat in paris") == [4]  # behind the token that is given


@pytest.mark.parametrize("kind", ["BartForConditionalGeneration", "MarianMTModel"])
def test_an_answer_alone_is_bounded_by_the_positions_of_its_decoder(tmp_path: Path, kind: str) -> None:
    fields = {"eos_token_id": None, "forced_eos_token_id": None}
    folder = stating(save(named(kind), tmp_path / "m"), **fields)
    with loaded(folder) as predictor:
        assert counted(predictor, "hello") == [64]
        assert counted(predictor, "hello", max_new_tokens=64) == [64]
        with pytest.raises(CallerError, match=r"65.*64"):
            generated(predictor, "hello", max_tokens=65)
    with loaded(folder, {"max_new_tokens": 100}) as predictor:
        assert counted(predictor, "hello") == [64]


def test_a_decoder_without_positions_has_no_limit(tmp_path: Path) -> None:
    folder = stating(save(named("T5ForConditionalGeneration"), tmp_path / "m", n_positions=16), eos_token_id=None)
    with loaded(folder) as predictor:
        assert counted(predictor, "hello", max_new_tokens=80) == [80]


def test_a_text_has_one_answer_whatever_the_folder_says(tmp_path: Path) -> None:
    folder = stating(save(named("GPT2LMHeadModel"), tmp_path / "m"), num_beams=2, num_return_sequences=2)
    with loaded(folder) as predictor:
        assert len(generated(predictor, "hello", max_new_tokens=3)) == 1
        assert len(generated(predictor, "hello", max_new_tokens=3, num_beams=1)) == 1
        with pytest.raises(CallerError, match="beams"):
            predictor.predict_stream(request("hello", max_new_tokens=3), [], Client(), streams=True)
        client = Client()
        predictor.predict_stream(request("hello", max_new_tokens=3, num_beams=1), [], client, streams=True)
        assert client.parts


# fault (endpoint): a seed -> the same answer each time
def test_a_seeded_request_leaves_the_random_numbers_of_others_as_they_were(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor:
        sampled = {"max_new_tokens": 20, "temperature": 1.5}
        after_seed = set()
        for _ in range(3):
            generated(predictor, "hello", **sampled, seed=7)
            after_seed.add(generated(predictor, "hello", **sampled)[0])
        assert len(after_seed) > 1, "unseeded requests repeat what follows the seed"
        torch.manual_seed(3)
        alone = generated(predictor, "hello", **sampled)
        torch.manual_seed(3)
        generated(predictor, "hello", **sampled, seed=7)
        assert generated(predictor, "hello", **sampled) == alone


def test_parts_begin_with_the_text_where_that_is_asked_for(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor:
        client = Client()
        asked = request("hello world", max_new_tokens=6, return_full_text=True)
        whole = predictor.predict_stream(asked, [], client, streams=True)["generated_text"][0].decode()
        assert client.parts[0] == "hello world"
        assert "".join(client.parts) == whole
    with load("T5ForConditionalGeneration") as predictor, pytest.raises(CallerError, match="return_full_text"):
        generated(predictor, "hello", return_full_text=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_new_tokens", True), ("seed", False), ("do_sample", 1), ("return_full_text", 0), ("do_sample", "false")],
)
def test_a_parameter_of_another_type_is_refused_by_name(load: Any, name: str, value: Any) -> None:
    with load("GPT2LMHeadModel") as predictor, pytest.raises(CallerError, match=name):
        generated(predictor, "hello", **{name: value})


def test_two_names_of_one_parameter_with_different_values_are_refused(load: Any) -> None:
    with load("GPT2LMHeadModel") as predictor, pytest.raises(CallerError, match="max_tokens"):
        generated(predictor, "hello", max_new_tokens=3, max_tokens=4)
