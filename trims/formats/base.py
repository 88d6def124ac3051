"""Protocol that every artifact format implements (a converter), and the data that it gets.

A converter turns an artifact (files as published) into an `ImagePlan`. Where it needs a framework it runs in a child
process with limits (`needs_child(options)`); where it does not, the daemon runs it itself. Third parties add formats
with the entry-point group `trims.formats`. This module and all it imports run in any environment: standard library
only.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeGuard, runtime_checkable

from trims.core.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from trims.image.plan import Contents, ImagePlan
    from trims.manifests.serving import Signature


def check_options(main: Path, options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise ArtifactError for an option that is not known, or an `allow_pickle` that is no bool."""
    allowed = {*known, "allow_pickle"}
    if unknown := sorted(set(options) - allowed):
        raise ArtifactError(f"{main}: unknown options {', '.join(unknown)}; known are {', '.join(sorted(allowed))}")
    if not isinstance(options.get("allow_pickle", False), bool):
        raise ArtifactError(f"{main}: allow_pickle must be true or false, not {options['allow_pickle']!r}")


def check_relative(main: Path, name: str) -> None:
    """Raise ArtifactError for a file name inside an artifact that is absolute or leaves the artifact's folder.

    Links are followed: model hubs keep their files behind them.
    """
    if not name or name.startswith("/") or "\0" in name or posixpath.normpath(name).split("/")[0] == "..":
        raise ArtifactError(f"{main}: it refers to {name!r}, which leaves its folder")


@dataclass(frozen=True, slots=True)
class Artifact:
    """Files as published, resolved and ready to read.

    Attributes:
        files: Absolute paths; the first is the one the manifest names, the rest (shards, external data, a params
            file) are those it refers to.
        options: The manifest's `options` for this format, as JSON values. Every format knows `allow_pickle`
            (False): whether code inside the artifact may run in the converter. Which others exist is the
            converter's documentation; an unknown one is an ArtifactError.
        origin: Folder of the manifest, where functions that the options name may lie; empty if there is none.
    """

    format: str
    files: tuple[Path, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a converter child.

    Attributes:
        memory_bytes: Private memory (RLIMIT_DATA) beside the artifact's own size, so that mapping its files is free;
            the image itself does not count.
        time_s: Wall seconds for planning and writing together, waiting for room left out.
        memory_setting: The setting that raises the first, for errors; empty if none does.
        time_setting: The setting that raises the second.
    """

    memory_bytes: int = 16 << 30
    time_s: float = 600.0
    memory_setting: str = "converter_memory_bytes"
    time_setting: str = "converter_time_s"


@runtime_checkable
class Converter(Protocol):
    """One artifact format. Instances are stateless; the class is constructed without arguments."""

    #: Name in manifests and the key of the entry point.
    format: ClassVar[str]
    #: Part of the image key; raised whenever the same artifact would give a different image.
    version: ClassVar[int]
    #: Dependence of the image on this host's instruction set: true if there is any.
    host_specific: ClassVar[bool]

    def needs_child(self, options: Mapping[str, Any]) -> bool:
        """Return whether, with these options, `plan` imports a framework or runs code of the artifact's author."""
        ...

    def frameworks(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return distributions whose versions are part of the image key, because the image depends on them."""
        ...

    def claims(self, main: Path, first_bytes: bytes) -> bool:
        """Return whether this looks like a file of the format. Never raises; reads nothing but its arguments."""
        ...

    def files(self, main: Path, options: Mapping[str, Any]) -> tuple[Path, ...]:
        """Return all files of the artifact, the main one first. Standard library only; never reads the weights.

        Raises ArtifactError when one is missing, or named by a path that is absolute or leaves the folder.
        """
        ...

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Read descriptions and lay the image out; weights are read when the plan is written.

        Raises ArtifactError naming the file and what is wrong with it.
        """
        ...


@runtime_checkable
class InPlaceFormat(Protocol):
    """A converter whose artifacts may hold tensors as they are in memory, and can then be served without a copy.

    What is served so must be what a conversion would give. Where only a framework can give that, it is the artifact as
    published, and its program's kind says so: sessions then do what the converter would have done. Both methods are
    called where others wait, so they parse little, import no framework and run nothing that its author wrote.
    """

    def may_be_in_place(self, options: Mapping[str, Any]) -> bool:
        """Return whether artifacts with these options are worth a look."""
        ...

    def contents(self, artifact: Artifact) -> Contents:
        """Return the tensors as spans of the artifact's files, found from its headers.

        Raises NotInPlaceError saying why the artifact needs a conversion, ArtifactError for what is wrong with it.
        """
        ...


@runtime_checkable
class Measurable(Protocol):
    """A converter that needs no child for its own sake, but may need one for a large artifact.

    Parsing holds the interpreter lock, so what is large is parsed in a child. A converter without these methods is
    believed to parse little.
    """

    def described_bytes(self, artifact: Artifact) -> int:
        """Return about how many bytes `plan` parses, found out by reading a few. Raises ArtifactError."""
        ...


@runtime_checkable
class StatesSize(Protocol):
    """A converter that finds the least length of an image without parsing what is too large to be parsed here."""

    def least_bytes(self, artifact: Artifact) -> int:
        """Return the fewest bytes that the image takes, by reading a few; 0 if they do not say. Raises ArtifactError.

        No more than the artifact's files have: a smaller artifact is not asked about.
        """
        ...


@runtime_checkable
class StatesSignature(Protocol):
    """A converter whose artifacts say what requests bring and what answers have."""

    def signature(self, artifact: Artifact) -> Signature:
        """Return inputs and outputs as the graph states them, without any that no request or answer can carry.

        Called where others wait: it reads little, imports no framework and runs nothing that the author wrote. It is
        empty if one of the inputs is not stated. Raises ArtifactError or NotInPlaceError for what cannot be read.
        """
        ...


def states_signature(chosen: object) -> TypeGuard[StatesSignature]:
    """Return whether a converter is a `StatesSignature`."""
    return issubclass(type(chosen), StatesSignature)


def states_size(chosen: object) -> TypeGuard[StatesSize]:
    """Return whether a converter is a `StatesSize`."""
    return issubclass(type(chosen), StatesSize)


def is_in_place_format(chosen: object) -> TypeGuard[InPlaceFormat]:
    """Check as `isinstance` does, without its slow search for each method of the protocol."""
    return issubclass(type(chosen), InPlaceFormat)


def is_measurable(chosen: object) -> TypeGuard[Measurable]:
    """Return whether a converter is a `Measurable`, at the cost of `is_in_place_format`."""
    return issubclass(type(chosen), Measurable)
