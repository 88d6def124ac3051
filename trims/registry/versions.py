"""Versions of one model, and what its aliases lead to: decisions only, which every registry shares.

The *plain name* of a model is an alias that is always there: it leads to the version that was registered first, until
it is switched. A *label* (`bert@stable`) is an alias that people make. An alias remembers what it led to before, so
that one order takes a switch back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trims.core.errors import CallerError, InUseError, ModelNotFoundError
from trims.manifests.manifest import VERSION_PATTERN
from trims.manifests.references import reference_to

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.manifests.manifest import Manifest

#: Label of the plain name.
PLAIN = ""
#: Most labels of one model.
_MOST_LABELS = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered version.

    Attributes:
        row: Name that everything known of this version is kept under: the model's name while it has one version, else
            `name@version`.
    """

    row: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Alias:
    """Target of an alias.

    Attributes:
        version: A version of the model.
        previous: What the alias led to before it was switched; empty if that is gone, or it never was.
    """

    version: str
    previous: str = ""


@dataclass(frozen=True, slots=True)
class Versions:
    """All versions of one model.

    Attributes:
        registered: Versions in the order in which they were registered.
        aliases: Versions by label; the plain name's is `PLAIN`.
    """

    name: str
    registered: tuple[str, ...]
    aliases: Mapping[str, Alias] = field(default_factory=dict)

    @property
    def default(self) -> str:
        """Return the version that the plain name leads to."""
        return self.version_of(PLAIN)

    def version_of(self, text: str) -> str:
        """Return the version that a version or a label stands for. Raises ModelNotFoundError."""
        if text in self.registered:
            return text
        alias = self.aliases.get(text)
        if alias is None:
            raise ModelNotFoundError(f"{self.name!r} has no version or label {text!r:.80}; it has {self.in_words()}")
        if alias.version not in self.registered:
            raise ModelNotFoundError(
                f"{reference_to(self.name, text)!r} leads to the version {alias.version!r}, which is not registered "
                f"any more; `trims alias {reference_to(self.name, text)} VERSION` switches it: it has {self.in_words()}"
            )
        return alias.version

    def row_of(self, version: str) -> str:
        """Return the row of a version: see `Entry.row`."""
        return self.name if self.registered == (version,) else reference_to(self.name, version)

    def rows(self) -> list[str]:
        """Return the rows of all versions, that of the plain name's version first."""
        default = self.aliases.get(PLAIN)
        first = "" if default is None else default.version
        return [self.row_of(each) for each in sorted(self.registered, key=lambda version: version != first)]

    def leading_to(self, version: str) -> list[str]:
        """Return the references of all aliases that lead to a version, the plain name first."""
        labels = [label for label, alias in self.aliases.items() if alias.version == version]
        return [reference_to(self.name, label) for label in sorted(labels)]

    def in_words(self) -> str:
        """Return the versions and labels for people."""
        labels = ", ".join(sorted(label for label in self.aliases if label))
        several = "versions" if len(self.registered) > 1 else "version"
        return f"the {several} {', '.join(self.registered)}" + (f" and the labels {labels}" if labels else "")

    # -- changes: each returns the versions afterwards -------------------------------------------------------------

    def added(self, version: str) -> Versions:
        """Register one more version, which no alias leads to. Raises CallerError for one that is called as a label."""
        if version in self.aliases:
            raise CallerError(
                f"{self.name!r} has a label {version!r}, so no version may be called so; remove the label first "
                f"(`trims alias {reference_to(self.name, version)} --remove`), or call the version otherwise"
            )
        return replace(self, registered=(*self.registered, version))

    def exchanged(self, before: str, version: str) -> Versions:
        """Put another version in the place of one: aliases that led there lead to the other one."""
        registered = tuple(version if each == before else each for each in self.registered)
        moved = {
            label: Alias(version if alias.version == before else alias.version, alias.previous)
            for label, alias in self.aliases.items()
        }
        checked = replace(self, registered=()).added(version)
        return replace(checked, registered=registered, aliases=_without_previous(moved, before))

    def switched(self, label: str, version: str) -> Versions:
        """Have an alias lead to a version.

        Raises ModelNotFoundError for a version that is not registered, CallerError for what can be no label.
        """
        if version not in self.registered:
            raise ModelNotFoundError(f"{self.name!r} has no version {version!r:.80}; it has {self.in_words()}")
        self._check_label(label)
        now = self.aliases.get(label)
        if now is not None and now.version == version:
            return self
        previous = "" if now is None or now.version not in self.registered else now.version
        return replace(self, aliases={**self.aliases, label: Alias(version, previous)})

    def _check_label(self, label: str) -> None:
        if label in self.registered:
            raise CallerError(
                f"{label!r} is a version of {self.name!r}, so it can be no label; choose another label, or give the "
                f"plain name: `trims alias {self.name} VERSION`"
            )
        if label and not re.match(VERSION_PATTERN, label):
            raise CallerError(
                f"{label!r:.80} can be no label: it must have letters, digits, '.', '_', '+' and '-', such as stable"
            )
        if label not in self.aliases and len(self.aliases) > _MOST_LABELS:
            raise CallerError(f"{self.name!r} has {_MOST_LABELS} labels, the most that it may; remove one")

    def switched_back(self, label: str) -> Versions:
        """Have an alias lead to what it led to before. Raises CallerError, ModelNotFoundError."""
        alias = self._alias(label)
        if alias.previous not in self.registered:
            raise CallerError(
                f"{reference_to(self.name, label)!r} cannot be switched back: what it led to before its version "
                f"{alias.version!r} is not known, or gone; name the version: it has {self.in_words()}"
            )
        return self.switched(label, alias.previous)

    def without_label(self, label: str) -> Versions:
        """Remove a label. Raises CallerError for the plain name, ModelNotFoundError for a label that is not there."""
        if label == PLAIN:
            raise CallerError(
                f"the plain name {self.name!r} always leads to a version; name a label (`{self.name}@LABEL`)"
            )
        self._alias(label)
        return replace(self, aliases={each: alias for each, alias in self.aliases.items() if each != label})

    def _alias(self, label: str) -> Alias:
        alias = self.aliases.get(label)
        if alias is None:
            raise ModelNotFoundError(f"{self.name!r} has no label {label!r:.80}; it has {self.in_words()}")
        return alias

    def without(self, text: str, *, every: bool = False) -> Versions:
        """Remove one version, or all.

        Args:
            text: The version; empty for the plain name, which removes the model if it has one version only.
            every: Remove the model with all its versions.

        Raises:
            ModelNotFoundError: The model has no such version.
            CallerError: A label was given, or `every` with a version.
            InUseError: An alias leads to the version, and there are others; or the plain name has several versions.
        """
        if every or not text:
            self._check_whole(text, every=every)
            return replace(self, registered=(), aliases={})
        version = self.version_of(text)
        if text not in self.registered:
            raise CallerError(
                f"{text!r} is a label of {self.name!r}, which leads to the version {version}; name the version to "
                f"remove, or remove the label: `trims alias {reference_to(self.name, text)} --remove`"
            )
        if len(self.registered) == 1:
            return replace(self, registered=(), aliases={})
        if leading := self.leading_to(version):
            raise InUseError(
                f"{reference_to(self.name, version)} is what {' and '.join(leading)} leads to; switch that first "
                f"(`trims alias {leading[0]} VERSION`), or remove the model with all its versions (`trims rm "
                f"{self.name} --all-versions`)"
            )
        left = tuple(each for each in self.registered if each != version)
        return replace(self, registered=left, aliases=_without_previous(self.aliases, version))

    def _check_whole(self, text: str, *, every: bool) -> None:
        if text:
            raise CallerError(f"{reference_to(self.name, text)!r} names a version; all are removed by the plain name")
        if len(self.registered) > 1 and not every:
            raise InUseError(
                f"{self.name!r} has {self.in_words()}; remove one of them (`trims rm {self.name}@VERSION`), or all "
                f"(`trims rm {self.name} --all-versions`)"
            )


def _without_previous(aliases: Mapping[str, Alias], version: str) -> dict[str, Alias]:
    """Return aliases that do not remember a version which is gone."""
    return {
        label: Alias(alias.version, "" if alias.previous == version else alias.previous)
        for label, alias in aliases.items()
    }
