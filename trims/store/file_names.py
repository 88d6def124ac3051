"""Names of files that are opened without a manifest: by their format, or for a program's own load function."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trims.core.errors import ArtifactChangedError, CallerError
from trims.store.catalog import FILE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Formats that files are wanted in for load functions, and the options that may be stated for each.
_WANTED: Mapping[str, tuple[str, ...]] = {"bytes": (), "cast": ("dtype",), "onnx": ("prepack",)}
#: Beginnings of the names of files at stated identities.
AT_IDENTITY = tuple(FILE_PREFIX + form for form in _WANTED)


class FileName(NamedTuple):
    """Parts of a file's name.

    Attributes:
        path: Path of its main file.
        format: Format that it is wanted in; None for the one that its bytes show.
        options: Options of the format.
        framework: Framework and version that its image is for; empty for any.
        identities: Identities that its files are wanted at, the main file's first; empty for any.
    """

    path: str
    format: str | None = None
    options: Mapping[str, str] = {}
    framework: tuple[str, str] | tuple[()] = ()
    identities: tuple[str, ...] = ()


def parse_file_name(name: str) -> FileName:
    """Read the name of a file (`FILE_PREFIX`): `file:/models/bert.bin`, or one at stated identities.

    A load function wants `file:FORMAT[,OPTION=VALUE][,FRAMEWORK==VERSION]:IDENTITY[|IDENTITY]:/models/bert.bin`, with
    `identity_of` each file, so such a name never changes its meaning. Raises CallerError for another form.
    """
    rest = name.removeprefix(FILE_PREFIX)
    asked, slash, path = rest.partition("/")
    if not asked:
        return FileName(rest)
    form, colon, identities = asked.removesuffix(":").partition(":")
    if not (slash and colon and identities and asked.endswith(":")):
        raise CallerError(f"{rest!r} is not absolute; the daemon does not know your current folder")
    format_, *words = form.split(",")
    options: dict[str, str] = {}
    framework: tuple[str, str] | tuple[()] = ()
    for word in words:
        key, equal, value = word.partition("=")
        if value.startswith("="):
            framework = (key, value[1:])
        else:
            options[key] = value
        if not equal:
            raise CallerError(f"{rest!r}: {word!r} is neither OPTION=VALUE nor FRAMEWORK==VERSION")
    if format_ not in _WANTED or not options.keys() <= set(_WANTED[format_]):
        raise CallerError(f"{rest!r}: {form!r} cannot be asked for by a path; register the model with these options")
    return FileName(slash + path, format_, options, framework, tuple(identities.split("|")))


def check_identity(name: str, identities: tuple[str, ...]) -> None:
    """Raise ArtifactChangedError for files that are not at the identities that they are wanted at."""
    if not name.startswith(AT_IDENTITY):
        return
    wanted = parse_file_name(name)
    if identities != wanted.identities:
        raise ArtifactChangedError(f"{wanted.path} is not the file that it was when it was asked for; ask again")
