"""Read a mapping as a msgspec struct: what is wrong is a ManifestError that names place, value and remedy.

The structs say which fields there are, of which types, and in which ranges. Here is what msgspec does not do: `null`
stands for a field that is left out, values may be written in several ways (`read` in a field's `extra`), and an error
has the nearest field that is known, or words for what to write (`hint` there).
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Meta, inspect

from trims.core.errors import CallerError, ConfigError, ManifestError

_Kind = TypeVar("_Kind")
#: `message - at $.place`, as msgspec writes errors.
_ERROR = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?\Z", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`\Z")
_WORDS = {
    inspect.StrType: "text, in quotes",
    inspect.StructType: "a mapping with text keys",
    inspect.BoolType: "true or false",
    inspect.DictType: "a mapping with text keys",
}
_BY_MSGSPEC = ("Expected ", "Number out of range", "Invalid ")
#: Letters of a text that an error names the length of.
_LONG = 80
#: `package.module:function`, or a class.
CALL = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z"


def about(description: str, **more: Any) -> Meta:
    """Return what a field is for, beside its ranges."""
    return Meta(description=description or None, **more)


def matching(pattern: str, hint: str, description: str = "") -> Meta:
    """Return the constraint of a text; `hint` says the pattern to people."""
    return about(description, pattern=pattern, extra={"hint": hint})


def one_of(names: Sequence[str], description: str = "") -> Meta:
    """Return the constraint of a text that is one of the names."""
    instead = {"enum": list(names)}
    hint = f"one of {', '.join(names)}"
    return about(
        description, pattern=rf"^({'|'.join(names)})\Z", extra={"hint": hint}, extra_json_schema={"instead": instead}
    )


def written(read: Callable[[Any, str], Any], instead: Mapping[str, Any], description: str = "", **extra: str) -> Meta:
    """Return what a field is that may be written in several ways.

    Args:
        read: Function of a value and its place to the value that the field gets. Raises ValueError, TrimsError.
        instead: JSON schema of all ways.
        extra: A `hint`, if the type does not say it.
    """
    return about(description, extra={"read": read, **extra}, extra_json_schema={"instead": dict(instead)})


def check_inside(path: str) -> str:
    """Return a relative path that stays in its folder; else raise ValueError. Symlinks are the reader's business."""
    parts = path.replace("\\", "/").split("/")
    if path.startswith("/") or ".." in parts or "\0" in path or not path:
        raise ValueError(f"{path!r} leaves its folder; write a path inside it")
    return path


def parse(kind: type[_Kind], raw: object, where: str) -> _Kind:
    """Return the struct that a mapping states. Raises ManifestError, whose message begins with `where`."""
    return _Reading(where).parse(kind, raw)


class _Reading:
    """One mapping as it is read: `seen` has the type and the value of each place in it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._seen: dict[str, tuple[inspect.Type, object]] = {}

    def parse(self, kind: type[_Kind], raw: object) -> _Kind:
        prepared = self._prepared(_type_info(kind), raw, "")  # type: ignore[arg-type]
        try:
            return msgspec.convert(prepared, kind, strict=True)
        except msgspec.ValidationError as error:
            raise self._named(str(error)) from error

    def _prepared(self, kind: inspect.Type, raw: Any, path: str) -> Any:
        """Return a value as msgspec takes it: unknown fields refused, `null` left out, each way of writing read."""
        self._seen[path] = (kind, raw)
        inner, extra = _unwrapped(kind)
        if "read" in extra and raw is not None:
            return self._read(extra["read"], raw, path)
        if isinstance(inner, inspect.StructType) and isinstance(raw, Mapping):
            known = {each.name: each.type for each in inner.fields if each.name != "origin"}
            self._check_known(raw, list(known), path)
            return {
                name: self._prepared(known[name], value, f"{path}.{name}" if path else name)
                for name, value in raw.items()
                if value is not None or isinstance(_unwrapped(known[name])[0], inspect.BoolType)
            }
        if isinstance(inner, inspect.ListType | inspect.VarTupleType) and isinstance(raw, list | tuple):
            return [self._prepared(inner.item_type, each, f"{path}[{index}]") for index, each in enumerate(raw)]
        return raw

    def _read(self, read: Callable[[Any, str], Any], raw: object, path: str) -> Any:
        try:
            return read(raw, self._place(path))
        except ManifestError:
            raise
        except (ValueError, ConfigError, CallerError) as error:
            raise ManifestError(f"{self._place(path)}: {error}") from error

    def _check_known(self, raw: Mapping[Any, Any], known: Sequence[str], path: str) -> None:
        unknown = sorted((each for each in raw if each not in known), key=str)
        if not unknown:
            return
        near = difflib.get_close_matches(str(unknown[0]), known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        known_words = ", ".join(sorted(known))
        raise ManifestError(f"{self._place(path)}: unknown field {unknown[0]!r:.80}; {hint}known are {known_words}")

    def _named(self, message: str) -> ManifestError:
        """Return the error of a place, from that of msgspec or of a struct's own check."""
        found = _ERROR.match(message)
        assert found is not None, "everything matches"
        what, path = found["what"], (found["path"] or "").removesuffix("[...]")
        kind, value = self._seen.get(path, (inspect.AnyType(), None))
        if missing := _MISSING.match(what):
            fields = {each.name: each.type for each in getattr(_unwrapped(kind)[0], "fields", ())}
            words = _words(fields[missing[1]])
            return ManifestError(f"{self._place(path)}: the field {missing[1]!r} is missing; write {words}")
        if what.startswith(_BY_MSGSPEC):
            length = f" of {len(value)} letters" if isinstance(value, str) and len(value) > _LONG else ""
            what = f"is {value!r:.80}{length}; write {_words(kind)}"
        return ManifestError(f"{self._place(path)}: {what}")

    def _place(self, path: str) -> str:
        if not path:
            return self._where
        return f"{self._where}.{path}" if ": " in self._where else f"{self._where}: {path}"


@cache
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _unwrapped(kind: inspect.Type) -> tuple[inspect.Type, dict[str, Any]]:
    """Return a type without `None` beside it, and the `extra` of what is said of it."""
    extra: dict[str, Any] = {}
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            extra |= kind.extra or {}
            kind = kind.type
        else:
            kind = next(each for each in kind.types if not isinstance(each, inspect.NoneType))
    return kind, extra


def _words(kind: inspect.Type) -> str:
    """Return words for what a field takes."""
    inner, extra = _unwrapped(kind)
    if "hint" in extra:
        return str(extra["hint"])
    if isinstance(inner, inspect.IntType) and inner.ge is not None:
        return f"a whole number from {inner.ge} " + ("up" if inner.le is None else f"to {inner.le}")
    if isinstance(inner, inspect.VarTupleType) and inner.max_length is not None:
        return f"a list of at most {inner.max_length} values"
    return _WORDS.get(type(inner), "a list")
