"""Requirements of an environment: from the command line, from files, and those of trims itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from trims.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

#: Requirements of every predictor and converter beside its framework.
_ALWAYS = ("numpy>=1.23", "ml-dtypes>=0.5")
#: Requirements of a converter, or of the framework itself, beside it: as pyproject.toml has them for the same extra.
BESIDE: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("onnx>=1.17",), "mxnet": ("numpy==1.23.5",), "transformers": ("torch>=2.6",),
}  # fmt: skip


def read_requirements(words: Iterable[str], files: Iterable[Path] = ()) -> list[str]:
    """Return requirements as written, checked. Raises ConfigError naming the word, or the file and the line."""
    found = [_checked(word, f"the requirement {word!r}") for word in words]
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"no requirements can be read from {file}: {error}") from error
        for number, line in enumerate(lines, 1):
            plain = line.partition(" #")[0].strip()
            if plain and not plain.startswith("#"):
                found.append(_checked(plain, f"{file}, line {number}: {plain!r}"))
    return found


def _checked(text: str, where: str) -> str:
    if text.startswith("-"):
        raise ConfigError(f"{where} is an option; write one requirement on each line, such as torch==2.4.1")
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ConfigError(f"{where} is no requirement such as torch==2.4.1: {str(error).splitlines()[0]}") from error
    if requirement.url is not None:
        raise ConfigError(
            f"{where} names a file or an address, which has no version to lock; put the wheel into a folder and write "
            f"--find-links FOLDER {requirement.name}"
        )
    return str(requirement)


def with_ours(requirements: Sequence[str]) -> list[str]:
    """Return the requirements and those of trims; a package that is stated already stays as it is stated."""
    stated = [canonicalize_name(Requirement(each).name) for each in requirements]
    found, names = list(requirements), set(stated)
    for each in (*(more for name in stated for more in BESIDE.get(name, ())), *_ALWAYS):
        name = canonicalize_name(Requirement(each).name)
        if name not in names:
            names.add(name)
            found.append(each)
    return found
