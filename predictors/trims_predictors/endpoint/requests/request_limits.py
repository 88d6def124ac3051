"""The most of each thing that one request may have: whatever goes through a request's parts ends after so many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Inputs of a request, and outputs that it asks for.
MOST_TENSORS = 1024
#: Parameters of a request, and of each of its inputs and outputs.
MOST_PARAMETERS = 256
#: Letters in the name of an input or output, as in a manifest (`trims.manifests.serving.TENSOR`).
MOST_NAME_LETTERS = 256
#: Largest values of one output that a request may ask for as texts, and texts of one answer.
MOST_CLASSES, MOST_CLASS_TEXTS = 100_000, 1_000_000


def check_count(what: str, count: int, most: int) -> None:
    """Raise CallerError for more of something than a request may have.

    Args:
        what: What there is, as `inputs of the request`.
    """
    if count > most:
        raise CallerError(f"there are {count} {what}; {most} are the most")


def check_fields(message: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Raise CallerError for an unknown field: what it asks for would be ignored.

    Args:
        message: An object of a request.
    """
    for name in message:
        if name not in known:
            raise CallerError(f"{where} has the field {name!r:.80}; it takes {', '.join(known) or 'none'}")


def check_name_length(name: str, what: str) -> None:
    """Raise CallerError for the name of an input or output that is too long."""
    if len(name) > MOST_NAME_LETTERS:
        raise CallerError(
            f"the name {name[:40]!r}... of {what} has {len(name)} letters; {MOST_NAME_LETTERS} are the most"
        )
