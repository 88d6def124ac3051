"""Lines of standard input as requests, and conversations by the streams of an endpoint."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import pytest
from trims_predictors.cli import run_lines
from trims_predictors.cli.run_lines import Conversation, answer_lines
from trims_predictors.cli.run_request import Away, event_of

from trims.core.errors import CallerError, DaemonAwayError, PredictorError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Endpoint:
    """Answers each message with its length, in two parts; without a chat template it continues texts."""

    def __init__(self, *, chats: bool) -> None:
        self.chats = chats
        self.asked: list[tuple[str, Any]] = []
        self.error: Exception | None = None

    def events(self, path: str, order: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if self.error is not None:
            raise self.error
        self.asked.append((path, order.get("messages", order.get("prompt"))))
        if path == "/v1/completions":
            yield {"choices": [{"text": order["prompt"]}]}
            yield {"choices": [{"text": "!"}]}
        elif not self.chats:
            raise CallerError("the model's tokenizer has no chat template; send a text (/v1/completions)")
        else:
            yield {"choices": [{"delta": {"role": "assistant"}}]}
            yield {"choices": [{"delta": {"content": "yes, "}}]}
            yield {"choices": [{"delta": {"content": order["messages"][-1]["content"]}}]}
            yield {"choices": [], "usage": {}}


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\n  \nagain\n"))


@pytest.mark.usefixtures("typed")
def test_a_conversation_has_its_lines_and_their_answers(capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = Endpoint(chats=True)
    assert answer_lines(Conversation(endpoint, "m").answer) == 0  # type: ignore[arg-type]
    assert capsys.readouterr().out == "yes, hello\nyes, again\n"
    said = [(each["role"], each["content"]) for each in endpoint.asked[-1][1]]
    assert said == [("user", "hello"), ("assistant", "yes, hello"), ("user", "again")]


@pytest.mark.usefixtures("typed")
def test_a_model_without_a_chat_template_continues_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = Endpoint(chats=False)
    assert answer_lines(Conversation(endpoint, "m").answer) == 0  # type: ignore[arg-type]
    assert capsys.readouterr().out == "hello!\nagain!\n"
    paths = [path for path, _ in endpoint.asked]
    assert paths == ["/v1/chat/completions", "/v1/completions", "/v1/completions"]


@pytest.mark.usefixtures("typed")
def test_a_line_that_is_refused_is_forgotten_and_the_next_one_answered(capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = Endpoint(chats=True)
    conversation = Conversation(endpoint, "m")  # type: ignore[arg-type]

    def answer(line: str) -> None:
        endpoint.error = CallerError("too long") if line == "hello" else None
        conversation.answer(line)

    assert answer_lines(answer) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("yes, again\n", "trims: too long\n")
    assert [each["content"] for each in endpoint.asked[-1][1]] == ["again"]


@pytest.mark.usefixtures("typed")
def test_an_endpoint_that_is_gone_ends_the_lines() -> None:
    endpoint = Endpoint(chats=True)
    endpoint.error = Away("no endpoint answers")
    with pytest.raises(DaemonAwayError):
        answer_lines(Conversation(endpoint, "m").answer)  # type: ignore[arg-type]


def test_a_terminal_has_a_prompt_and_ctrl_c_ends_the_answer_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["one", "", "two"])
    prompts: list[str] = []

    def read(prompt: str) -> str:
        prompts.append(prompt)
        if (line := next(lines, None)) is None:
            raise EOFError
        return line

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def answer(line: str) -> None:
        if line == "one":
            raise KeyboardInterrupt
        sys.stdout.write(f"{line}\n")

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr(run_lines, "input", read, raising=False)
    assert answer_lines(answer) == 0
    assert (len(prompts), capsys.readouterr().out) == (4, "\ntwo\n\n")


@pytest.mark.parametrize("line", [b"", b": a comment", b"event: x", b"data: [DONE]", b"data:"])
def test_lines_without_json_are_no_events(line: bytes) -> None:
    assert event_of(line) is None


@pytest.mark.parametrize("error", ['{"message": "it died"}', '"it died"'])
def test_an_event_that_is_an_error_is_raised(error: str) -> None:
    with pytest.raises(PredictorError, match="it died"):
        event_of(f'data: {{"error": {error}}}'.encode())
