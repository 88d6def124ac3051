"""Files that describe a model (configuration, tokenizer, templates), carried in the program of its image.

They lie one behind the other at the end of the program's body. Its attribute `model` says the model's task, and where
each file begins and how long it is. Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trims.image.program import Program

#: Attribute of a program.
MODEL = "model"


class Described(NamedTuple):
    """A model as the files in its image describe it.

    Attributes:
        task: What it answers, such as `fill-mask`.
        files: Content by the name in the model's folder.
    """

    task: str
    files: Mapping[str, bytes]


def with_files(program: Program, described: Described) -> Program:
    """Return the program with the files behind its body."""
    placed, at = {}, len(program.body)
    for name, content in described.files.items():
        placed[name] = [at, len(content)]
        at += len(content)
    model = {"task": described.task, "files": placed}
    body = b"".join((program.body, *described.files.values()))
    return program._replace(attributes={**program.attributes, MODEL: model}, body=body)


def described_in(program: Program | None) -> Described | None:
    """Return the model's description; None for a program without. Raises ImageError for one that breaks off."""
    model = None if program is None else program.attributes.get(MODEL)
    if program is None or model is None:
        return None
    try:
        return Described(str(model["task"]), dict(_split(program.body, model)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ImageError(f"the description of the model in its program is not readable: {error!r:.200}") from error


def _split(body: bytes, model: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for name, (begin, length) in model["files"].items():
        end = int(begin) + int(length)
        if not 0 <= int(begin) <= end <= len(body) or name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"file {name!r:.100} from {begin} to {end} of {len(body)} bytes")
        yield name, body[int(begin) : end]
