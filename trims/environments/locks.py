"""Locks of environments: exact versions, for one Python and one platform. Reads and writes lock files.

A lock file is a requirements file with hashes, which pip and uv install as it is. Comments at its top say the rest.
The identity of an environment is a digest of its lock: the same request made twice is one environment.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from trims.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TITLE = "# An environment of trims. Make it again: trims env create --lock FILE"
_HASH = re.compile(r"--hash=(sha\d+:[0-9a-f]+)")
_PYTHON = re.compile(r"\d+\.\d+\Z")
#: Frameworks after which an environment is named, the most specific first.
_TELLING = ("torch", "onnxruntime", "mxnet", "transformers", "numpy")


@dataclass(frozen=True, slots=True)
class Pin:
    """One package. `hashes` are those of the files it may be installed from; empty if they are not known."""

    name: str
    version: str
    hashes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lock:
    """All packages of one environment.

    Attributes:
        pins: Sorted by name.
        python: `3.11`.
        platform: Platform as `sysconfig.get_platform` names it: `linux-x86_64`.
    """

    pins: tuple[Pin, ...]
    python: str
    platform: str
    requested: tuple[str, ...] = ()

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions by package."""
        return {pin.name: pin.version for pin in self.pins}

    def identity(self) -> str:
        """Return a digest of what is in the lock, whatever was asked for and whichever files it comes from."""
        facts = [self.python, self.platform, [[pin.name, pin.version] for pin in self.pins]]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def name(self) -> str:
        """Return a name for people, and for a folder: the framework, the Python, and the beginning of the identity."""
        versions = self.versions
        told = next((f"{each}-{versions[each]}" for each in _TELLING if each in versions), "python")
        return f"{told}-py{self.python.replace('.', '')}-{self.identity()[:10]}"

    def text(self) -> str:
        """Return the text of the lock file."""
        head = [_TITLE, f"# python: {self.python}", f"# platform: {self.platform}"]
        head += [f"# requested: {each}" for each in self.requested]
        return "\n".join([*head, "", *map(_line, self.pins), ""])


def locked(pins: Iterable[Pin], python: str, platform: str, requested: Iterable[str] = ()) -> Lock:
    """Return a lock with its packages in order, under the names that the index has for them."""
    named = [Pin(canonicalize_name(pin.name), pin.version, tuple(sorted(pin.hashes))) for pin in pins]
    return Lock(tuple(sorted(named, key=lambda pin: pin.name)), python, platform, tuple(requested))


def _line(pin: Pin) -> str:
    return " \\\n    ".join([f"{pin.name}=={pin.version}", *(f"--hash={each}" for each in pin.hashes)])


def parse_lock(text: str, where: str) -> Lock:
    """Read a lock file as it was written. Raises ConfigError naming the file and the line."""
    facts = dict(re.findall(r"^# (python|platform): (.+)$", text, re.MULTILINE))
    if not _PYTHON.match(facts.get("python", "")) or "platform" not in facts:
        raise ConfigError(
            f"{where} is no lock file of trims: it lacks the lines `# python: 3.11` and `# platform: linux-x86_64`; "
            "for a plain requirements file write -r FILE"
        )
    requested = re.findall(r"^# requested: (.+)$", text, re.MULTILINE)
    return locked(parse_pins(text, where), facts["python"], facts["platform"], requested)


def parse_pins(text: str, where: str) -> list[Pin]:
    """Read the packages of a requirements file in which each has one version. Raises ConfigError."""
    joined = text.replace("\\\n", " ")
    return [_pin(line, where) for line in map(_without_comment, joined.splitlines()) if line]


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#.*", "", line).strip()


def _pin(line: str, where: str) -> Pin:
    plain = _HASH.sub("", line).strip()
    try:
        requirement = Requirement(plain)
    except InvalidRequirement as error:
        raise ConfigError(
            f"{where} has the line {plain!r}, which is no requirement: {str(error).splitlines()[0]}"
        ) from error
    stated = list(requirement.specifier)
    if len(stated) != 1 or stated[0].operator not in ("==", "===") or stated[0].version.endswith("*"):
        raise ConfigError(f"{where} has the line {plain!r}; a lock states one version: {requirement.name}==1.2.3")
    return Pin(requirement.name, stated[0].version, tuple(_HASH.findall(line)))
