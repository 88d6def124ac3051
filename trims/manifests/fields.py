"""One mapping of a manifest, taken apart field by field: what is wrong is a ManifestError that names the field."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

from trims.core.errors import ConfigError, ManifestError
from trims.core.units import parse_bytes

#: `package.module:function`, or a class.
CALL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
_PACKAGE = re.compile(r"[A-Za-z_]\w*(\.\w+)*\Z")
_RATIO = re.compile(r"\d+(\.\d+)?/\d+(\.\d+)?\Z")


def check_inside(path: str, what: str) -> str:
    """A relative path that stays in its folder, or ManifestError. Lexical: symlinks are the reader's business."""
    parts = path.replace("\\", "/").split("/")
    if path.startswith("/") or ".." in parts or "\0" in path or not path:
        raise ManifestError(f"{what}: {path!r} leaves its folder; write a path inside it")
    return path


def parse_package(raw: object, where: str) -> tuple[str, str] | None:
    """A Python package and a path inside it, from `{name: ..., path: ...}`; None if it is absent."""
    if raw is None:
        return None
    fields = Fields(raw, where)
    package = fields.text("name", pattern=_PACKAGE, hint="an import name", required=True)
    path = check_inside(fields.text("path", required=True), f"{where}.path")
    fields.done()
    return package, path


class Fields:
    """The fields of one mapping. Each method takes one out and checks it; `done` refuses what was not taken."""

    def __init__(self, raw: object, where: str) -> None:
        if not isinstance(raw, Mapping) or not all(isinstance(key, str) for key in raw):
            raise ManifestError(f"{where}: must be a mapping with text keys, not {type(raw).__name__}")
        self.where = where
        self._left: dict[str, Any] = dict(raw)
        self._known: list[str] = []

    def take(self, key: str, default: Any = None) -> Any:
        """The value as it is, unchecked; the default if it is not there."""
        self._known.append(key)
        return self._left.pop(key, default)

    def text(
        self,
        key: str,
        default: str | None = None,
        *,
        pattern: re.Pattern[str] | None = None,
        hint: str = "",
        required: bool = False,
    ) -> str:
        """Text, as `pattern` says; `hint` says the same to people."""
        value = self.take(key)
        if value is None:
            if required or default is None:
                raise ManifestError(f"{self.where}: the field {key!r} is missing")
            return default
        if not isinstance(value, str):
            raise ManifestError(f"{self.where}: {key!r} must be text, not {value!r}; quote it")
        if pattern is not None and not pattern.match(value):
            raise ManifestError(f"{self.where}: {key!r} is {value!r}; write {hint}")
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """One of the texts allowed."""
        value = self.text(key, default)
        if value not in allowed:
            raise ManifestError(f"{self.where}: {key!r} is {value!r}; it must be one of {', '.join(allowed)}")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return a flag: true or false."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise ManifestError(f"{self.where}: {key!r} must be true or false, not {value!r}")
        return value

    def seconds(self, key: str) -> float | None:
        """A number of seconds from 0 up; None if it is not there."""
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise ManifestError(f"{self.where}: {key!r} must be a number of seconds from 0 up, not {value!r}")
        return float(value)

    def size(self, key: str) -> int | None:
        """Bytes, also as text such as `512MiB`; None if it is not there."""
        value = self.take(key)
        if value is None:
            return None
        try:
            return parse_bytes(value)
        except ConfigError as error:
            raise ManifestError(f"{self.where}: {key!r}: {error}") from error

    def count(self, key: str, default: int, *, least: int = 0, most: int = 1 << 20) -> int:
        """A whole number from `least` to `most`."""
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ManifestError(f"{self.where}: {key!r} must be a whole number from {least} to {most}, not {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number; also text such as `1/255`."""
        value = self.take(key)
        return default if value is None else self._number(key, value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers, or one of them alone; empty if it is not there."""
        value = self.take(key)
        if value is None:
            return ()
        given = value if isinstance(value, list | tuple) else [value]
        if not given:
            raise ManifestError(f"{self.where}: {key!r} is an empty list; write one number for each channel, or one")
        return tuple(self._number(key, each) for each in given)

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, str) and _RATIO.match(value):
            above, _, below = value.partition("/")
            value = float(above) / float(below) if float(below) else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ManifestError(f"{self.where}: {key!r} must be a finite number or one such as 1/255, not {value!r}")
        return float(value)

    def texts(self, key: str, default: tuple[str, ...] = (), *, pattern: re.Pattern[str], hint: str) -> tuple[str, ...]:
        """A list of texts, each as the pattern says."""
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, list | tuple):
            raise ManifestError(f"{self.where}: {key!r} must be a list, not {value!r}")
        for each in value:
            if not isinstance(each, str) or not pattern.match(each):
                raise ManifestError(f"{self.where}: {key!r} has {each!r}; write {hint}")
        return tuple(value)

    def mapping(self, key: str) -> dict[str, Any]:
        """A mapping with text keys; empty if it is not there."""
        value = self.take(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise ManifestError(f"{self.where}: {key!r} must be a mapping with text keys, not {value!r}")
        return dict(value)

    def done(self) -> None:
        """Raise ManifestError if a field is left that no method has taken, with the nearest that is known."""
        if self._left:
            unknown = sorted(self._left)[0]
            near = difflib.get_close_matches(unknown, self._known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ManifestError(
                f"{self.where}: unknown field {unknown!r:.80}; {hint}known are {', '.join(sorted(set(self._known)))}"
            )
