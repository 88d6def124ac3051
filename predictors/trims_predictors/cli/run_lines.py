"""`trims run MODEL` without an input: a request for each line of standard input, and a conversation with a chat model.

A model that generates text answers as it goes, by the endpoint's streams: with its chat template if its tokenizer has
one, and then each line has the lines before it and their answers. Other models answer a line as they answer an input.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from trims.core.errors import CallerError, DaemonAwayError, TrimsError
from trims_predictors.cli.run_request import Away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_predictors.cli.run_request import HttpEndpoint

_PROMPT = ">>> "
#: Words by which an endpoint says that a model takes no conversation.
_NO_CHAT = "chat template"


def answer_lines(answer: Callable[[str], None]) -> int:
    """Answer each line of standard input; return the exit status, 1 if a line was refused.

    A terminal gets a prompt, and Ctrl-C ends the answer that goes on. What a line raises is printed, and the next line
    is read: only an endpoint or a daemon that is gone ends it.
    """
    refused = 0
    for line in _lines():
        try:
            answer(line)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            sys.stdout.write("\n")
        except DaemonAwayError:
            raise
        except TrimsError as error:
            sys.stdout.flush()
            sys.stderr.write(f"trims: {error}\n")
            refused = 1
    return refused


def _lines() -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin if line.strip())
        return
    import readline  # noqa: F401 - lines can be edited, and the last ones come back

    while True:
        try:
            line = input(_PROMPT)
        except EOFError:
            sys.stdout.write("\n")
            return
        if line.strip():
            yield line


class Conversation:
    """Lines of text for a model that generates, and its answers as they come."""

    def __init__(self, endpoint: HttpEndpoint, model: str) -> None:
        self._endpoint = endpoint
        self._model = model
        self._messages: list[dict[str, str]] = []
        #: Whether the model takes conversations; None before the first answer.
        self._chats: bool | None = None

    def answer(self, line: str) -> None:
        """Print the answer to a line as it comes. Raises what the endpoint reports, and forgets the line then."""
        try:
            self._answer(line)
        except Away as error:
            raise DaemonAwayError(f"{error}; start one, or name the line on the command line") from error

    def _answer(self, line: str) -> None:
        parts = self._chat(line) if self._chats is not False else self._text(line)
        try:
            self._print(parts)
        except CallerError as error:
            if self._chats is not None or _NO_CHAT not in str(error):
                raise
            self._chats = False
            self._print(self._text(line))

    def _print(self, parts: Iterator[str]) -> None:
        for part in parts:
            sys.stdout.write(part)
            sys.stdout.flush()
        sys.stdout.write("\n")

    def _chat(self, line: str) -> Iterator[str]:
        asked = [*self._messages, {"role": "user", "content": line}]
        said = ""
        for found in self._endpoint.events(
            "/v1/chat/completions", {"model": self._model, "messages": asked, "stream": True}
        ):
            self._chats = True
            for choice in found.get("choices", ()):
                part = choice.get("delta", {}).get("content") or ""
                said += part
                yield part
        self._messages = [*asked, {"role": "assistant", "content": said}]

    def _text(self, line: str) -> Iterator[str]:
        asked = {"model": self._model, "prompt": line, "stream": True}
        for found in self._endpoint.events("/v1/completions", asked):
            yield from (choice.get("text") or "" for choice in found.get("choices", ()))
