"""Parts that other packages bring and a setting chooses: registries. They are found by entry point.

The setting says `NAME` or `NAME:ARGUMENT`. A name is one of ours or an entry point of the part's group, and stands for
a function that is given a frozen record and returns the part. What goes wrong while the part is opened is a ConfigError
that names the plug-in and the cause. Not covered: formats (`trims.formats.plugins`) and policies, which take nothing.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from trims.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

log = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
_Given = TypeVar("_Given")
_Part = TypeVar("_Part")
_OURS = "trims"
#: All groups of entry points that trims reads.
GROUPS = (
    "trims.formats",
    "trims.policies",
    "trims.registries",
    "trims.sources",
    "trims.predictors",
    "trims.reseed",
    "trims.loaders",
    "trims.commands",
    "trims.evaluations",
    "trims.cuda",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Value of a setting that chooses a part.

    Attributes:
        argument: All that follows the first colon, as it was written; empty without one.
    """

    name: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.argument}" if self.argument else self.name

    @classmethod
    def parse(cls, text: str) -> Choice:
        """Read `NAME` or `NAME:ARGUMENT`. Raises ConfigError."""
        name, _, argument = text.partition(":")
        if not _NAME.match(name):
            raise ConfigError(f"{text!r} is not NAME or NAME:ARGUMENT, with a name of lower-case letters and digits")
        return cls(name, argument)


@dataclass(frozen=True, slots=True)
class Opened(Generic[_Part]):
    """A part that was opened.

    Attributes:
        where: The plug-in that it comes from, to be named in errors; empty for one of ours.
    """

    part: _Part
    where: str


@dataclass(frozen=True, slots=True)
class Installed:
    """A plug-in of another package, of any group.

    Attributes:
        value: Module and function or class.
        package: Name and version of the package that brings it.
        problem: Why it cannot be imported; empty if it can.
    """

    group: str
    name: str
    value: str
    package: str
    problem: str


def installed() -> list[Installed]:
    """Return all plug-ins of other packages, sorted by group and name. Each is imported, and not called."""
    every = importlib.metadata.entry_points()
    entries = [entry for group in GROUPS for entry in every.select(group=group) if _package(entry) != _OURS]
    return [_installed(entry) for entry in sorted(entries, key=lambda each: (each.group, each.name, each.value))]


def _package(entry: importlib.metadata.EntryPoint) -> str:
    return "" if entry.dist is None else entry.dist.name


def _installed(entry: importlib.metadata.EntryPoint) -> Installed:
    package = "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    problem = ""
    try:
        entry.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may fail in any way
        problem = f"{type(error).__name__}: {error}"
    return Installed(entry.group, entry.name, entry.value, package, problem)


@dataclass(frozen=True, slots=True)
class Kind(Generic[_Given, _Part]):
    """A kind of part that may come from another package.

    Attributes:
        what: The kind as a sentence names it, such as `registry`.
        builtin: Ours, by name: no plug-in may have their names.
        check: Says why something is no part of this kind; returns an empty text for one that is.
    """

    group: str
    what: str
    builtin: Mapping[str, Callable[[_Given], _Part]]
    check: Callable[[object, _Given], str]

    def open(self, choice: Choice, given: _Given) -> Opened[_Part]:
        """Open the part that a setting names.

        Raises ConfigError if there is none of the name, or a plug-in cannot be imported, raises, or returns something
        else, which is closed. What one of ours raises is raised as it is.
        """
        if choice.name in self.builtin:
            return Opened(self.builtin[choice.name](given), "")
        return self._open(self.find(choice), given)

    def find(self, choice: Choice) -> importlib.metadata.EntryPoint:
        """Return the plug-in of that name; nothing of it is imported. Raises ConfigError if there is none."""
        entry = self._plugins().get(choice.name)
        if entry is None:
            known = ", ".join(self.names())
            raise ConfigError(
                f"there is no {self.what} {choice.name!r}; known are {known} (a package adds one as an entry point of "
                f"the group {self.group})"
            )
        return entry

    def names(self) -> list[str]:
        """Return all that may be chosen, sorted."""
        return sorted({*self.builtin, *self._plugins()})

    def _plugins(self) -> dict[str, importlib.metadata.EntryPoint]:
        """Return the plug-ins by name.

        Raises ConfigError for two of one name, or one of ours: chance must not choose.
        """
        found: dict[str, importlib.metadata.EntryPoint] = {}
        for entry in importlib.metadata.entry_points(group=self.group):
            if entry.name in self.builtin:
                raise ConfigError(f"{self._where(entry)} has the name of a {self.what} of trims; uninstall its package")
            other = found.setdefault(entry.name, entry)
            if other.value != entry.value:
                raise ConfigError(
                    f"two {self.group} plug-ins call themselves {entry.name!r}: {other.value} and {entry.value}; "
                    "uninstall one of their packages"
                )
        return found

    def _where(self, entry: importlib.metadata.EntryPoint) -> str:
        return f"the {self.group} plug-in {entry.name!r} ({entry.value})"

    def _open(self, entry: importlib.metadata.EntryPoint, given: _Given) -> Opened[_Part]:
        where = self._where(entry)
        log.info("opening %s", where)
        try:
            part = entry.load()(given)
        except (Exception, SystemExit) as error:  # a plug-in may fail in any way; it must not look like our failure
            raise ConfigError(f"{where} cannot be opened: {_said(error)}") from error
        try:
            wrong = self.check(part, given)
        except Exception as error:  # noqa: BLE001 - its properties are code of the plug-in, too
            wrong = f"cannot be asked what it is: {_said(error)}"
        if wrong:
            _close(part)
            raise ConfigError(f"{where} {wrong}")
        return Opened(part, where)


def _said(error: BaseException) -> str:
    """Return an error as text: one of our tree is a sentence for the operator; any other needs its type."""
    return str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"


def _close(part: Any) -> None:
    """Close a refused part, as far as it can be closed."""
    with contextlib.suppress(Exception):
        part.close()
