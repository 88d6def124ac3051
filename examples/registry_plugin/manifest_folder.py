"""A registry from outside trims: a folder of YAML manifests, one model per file, that an operator edits.

The file `bert.yaml` has the manifest of `bert`. What is written there by hand, or by a checkout, counts at the next
look at the name. `trims add` writes such a file too, whose first line says where relative paths begin:

    # origin: "/srv/models"

In a file without that line, they begin at the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trims.core.errors import ConfigError, ManifestError
from trims.manifests.manifest import Manifest, parse_manifest
from trims.registry.base import check_manifest, json_of, parse_yaml, taken_name, unknown_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.registry.base import RegistrySettings

_FILE = re.compile(r"([A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?)\.yaml\Z")
_ORIGIN = "# origin: "


def open_folder(settings: RegistrySettings) -> ManifestFolder:
    """The entry point: `folder:/srv/manifests`."""
    folder = Path(settings.argument)
    if not folder.is_absolute() or not folder.is_dir():
        raise ConfigError(f"folder:{settings.argument} must name a folder that is there, by its absolute path")
    return ManifestFolder(folder)


class ManifestFolder:
    """See `trims.registry.base.Registry`. Nothing is kept in memory: the folder alone says what is registered."""

    changes_outside = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, raw: dict[str, Any], origin: str, *, replace: bool = False) -> Manifest:
        """Write a file beside and rename it: a reader, and a crash, find the old manifest or the new one."""
        manifest = check_manifest(raw, origin)
        path, beside = self._path(manifest.name), self._folder / ".writing"
        text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
        with self._writing(path) as folder:
            if not replace and path.exists():
                self._check_same(manifest.name, raw, origin)
            with open(beside, "w", encoding="utf-8", newline="\n") as file:
                file.write(f"{_ORIGIN}{json.dumps(origin)}\n{text}")
                file.flush()
                os.fsync(file.fileno())
            beside.rename(path)
            os.fsync(folder)
        return manifest

    def get(self, name: str) -> Manifest:
        """Read the file: a broken one is an error of this model only."""
        return parse_manifest(*self._read(name))

    def raw(self, name: str) -> dict[str, Any]:
        """What the file says."""
        return self._read(name)[0]

    def names(self) -> list[str]:
        """By the names of the files; none is read."""
        try:
            found = map(_FILE.match, os.listdir(self._folder))
        except OSError as error:
            raise ConfigError(f"the folder of manifests {self._folder} cannot be read: {error.strerror}") from error
        return sorted(match.group(1) for match in found if match)

    def remove(self, name: str) -> None:
        """Remove the file."""
        path = self._path(name)
        with self._writing(path) as folder:
            try:
                path.unlink()
            except FileNotFoundError:
                raise unknown_model(name, self.names()) from None
            os.fsync(folder)

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _path(self, name: str) -> Path:
        if len(name) > 200 or not _FILE.match(f"{name}.yaml"):
            raise unknown_model(name, self.names())
        return self._folder / f"{name}.yaml"

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[int]:
        """One thread of one process writes at a time; yields the folder's descriptor, which the kernel locks."""
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                yield folder
            finally:
                os.close(folder)
        except OSError as error:
            raise ConfigError(f"{path} cannot be changed: {error.strerror}; this user must be able to") from error

    def _check_same(self, name: str, raw: dict[str, Any], origin: str) -> None:
        try:
            there, its_origin = self._read(name)
            same = json_of(there, name) == json_of(raw, name) and its_origin == origin
        except ManifestError:
            same = False
        if not same:
            raise taken_name(name)

    def _read(self, name: str) -> tuple[dict[str, Any], str]:
        """The mapping in a model's file, and where its relative paths begin."""
        path = self._path(name)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise unknown_model(name, self.names()) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"{path} cannot be read: {error}") from error
        try:
            raw = parse_yaml(text)
            origin = _origin(text, str(self._folder))
            if raw.get("name") != name:
                raise ManifestError(f"must say `name: {name}`, as the file's name does")
            check_manifest(raw, origin)
        except ManifestError as error:
            raise ManifestError(f"{path}: {error}") from error
        return raw, origin


def _origin(text: str, default: str) -> str:
    first = text.partition("\n")[0]
    if not first.startswith(_ORIGIN):
        return default
    try:
        return str(json.loads(first.removeprefix(_ORIGIN)))
    except ValueError as error:
        raise ManifestError(f"the line {first!r} must give a folder in double quotes") from error
