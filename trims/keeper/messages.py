"""Orders to a keeper, checked. Each is answered before the next one is read; descriptors travel beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trims.core.errors import BadMessageError
from trims.wire.fields import number, only, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.wire.frames import Message

_EXPORT = ("driver", "device", "size_bytes", "handle", "cuda")


class Verdict(NamedTuple):
    """Answer to `verify`.

    Attributes:
        way: `products` or `plain` for the device's kernels and `host` for the host's sum of the checksum, or `blake3`.
        found: Sum of the bytes as they are, in hex.
        expected: Sum of the bytes that were sealed, in hex.
    """

    way: str
    found: str
    expected: str

    @property
    def wrong(self) -> str:
        """Return what is wrong; empty if the bytes are those that were sealed."""
        if self.found == self.expected:
            return ""
        verb = "hash to" if self.way == "blake3" else f"have the sum (by {self.way})"
        return f"its bytes {verb} {self.found[:16]}..., {self.expected[:16]}... was sealed"


@dataclass(frozen=True, slots=True)
class Hello:
    """Report what this keeper is, and the images that it holds."""


@dataclass(frozen=True, slots=True)
class Room:
    """Report how much of the device is free."""


@dataclass(frozen=True, slots=True)
class Create:
    """Allocate an image. Unless it is sealed, it ends with the connection."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Copy an image from the file whose descriptor comes with the order."""

    image: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy an image from another device: the descriptor of its head comes along, and that of its memory if it has one.

    Attributes:
        source: What lets another process open that memory, without its descriptor.
    """

    image: int
    source: Message


@dataclass(frozen=True, slots=True)
class Seal:
    """Seal an image: from then on it outlives the connection."""

    image: int
    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class Export:
    """Give what lets a borrower open an image: its head, and its memory."""

    image: int


@dataclass(frozen=True, slots=True)
class Read:
    """Copy an image into the file whose descriptor comes with the order."""

    image: int


@dataclass(frozen=True, slots=True)
class Digest:
    """Hash an image where it lies."""

    image: int


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare an image where it lies with what was sealed."""

    image: int


@dataclass(frozen=True, slots=True)
class Free:
    """Give an image's memory back."""

    image: int


@dataclass(frozen=True, slots=True)
class End:
    """Free everything, and end."""


Order = Hello | Room | Create | Fill | Copy | Seal | Export | Read | Digest | Verify | Free | End


def parse_order(message: Message) -> Order:
    """Check an order. Raises BadMessageError saying what is wrong with which field."""
    parse = _PARSERS.get(str(message.get("op")))
    if parse is None:
        raise BadMessageError(f"unknown order {message.get('op')!r}; {', '.join(_PARSERS)} are known"[:200])
    return parse(message)


def _parse_create(message: Message) -> Create:
    only(message, "nbytes")
    return Create(number(message, "nbytes"))


def _parse_copy(message: Message) -> Copy:
    only(message, "image", *_EXPORT)
    return Copy(number(message, "image"), {name: message[name] for name in _EXPORT if name in message})


def _parse_seal(message: Message) -> Seal:
    only(message, "image", "key", "digest")
    key, digest = text(message, "key"), text(message, "digest")
    if not key or not digest:
        raise BadMessageError("a seal needs 'key' and 'digest'")
    return Seal(number(message, "image"), key, digest)


def _bare(kind: Callable[[], Order]) -> Callable[[Message], Order]:
    def parse(message: Message) -> Order:
        only(message)
        return kind()

    return parse


def _of_an_image(kind: Callable[[int], Order]) -> Callable[[Message], Order]:
    def parse(message: Message) -> Order:
        only(message, "image")
        return kind(number(message, "image"))

    return parse


_PARSERS: dict[str, Callable[[Message], Order]] = {
    "hello": _bare(Hello),
    "room": _bare(Room),
    "create": _parse_create,
    "fill": _of_an_image(Fill),
    "copy": _parse_copy,
    "seal": _parse_seal,
    "export": _of_an_image(Export),
    "read": _of_an_image(Read),
    "digest": _of_an_image(Digest),
    "verify": _of_an_image(Verify),
    "free": _of_an_image(Free),
    "end": _bare(End),
}
