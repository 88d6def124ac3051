"""Resolution from a name to an image key: manifest, files, digests, recipe.

The first resolution reads every byte of the artifact once (blake3, and sha256 where the manifest states one); later
ones compare identities. The key is content-true: digests of all files, and everything else the image depends on.

A name has an *epoch*, which rises whenever its manifest changes or goes. A resolution that began in an earlier epoch
is not remembered, and its askers are resolved again: they never get what the name stood for before they asked.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import math
import os
import stat
import threading
import time
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3
import msgspec

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    BrokenWeightsError,
    CallerError,
    DigestMismatchError,
    NotSupportedError,
    TrimsError,
)
from trims.core.place import FILE, TierKind
from trims.formats.base import Artifact, Converter, Limits
from trims.formats.conversion.build import build_artifact
from trims.formats.conversion.conversion import builder_of_options, converter, detect, recipe
from trims.formats.conversion.environments import Environment
from trims.formats.in_place import check_headers, least_image_bytes, may_be_in_place
from trims.formats.plugins import naming_foreign
from trims.formats.settings import check_settings
from trims.formats.transformers.folder import main_in
from trims.manifests.addresses import without_secret
from trims.manifests.device_support import why_not_on_device
from trims.manifests.manifest import ArtifactSource, Manifest, parse_manifest
from trims.manifests.references import name_of
from trims.manifests.runs import framework_in
from trims.registry.versions import Entry
from trims.store.catalog import FILE_PREFIX, identities_of
from trims.store.resolve.addresses import Addresses, main_of, server_of
from trims.store.resolve.by_model import ByModel
from trims.store.resolve.file_digests import FileDigests, rest_of
from trims.store.resolve.hashing import DigestNeededError, Digests, Progress, Reading, ReplacedError
from trims.store.resolve.mounts import mount_of, mount_of_now
from trims.store.resolve.references import References
from trims.store.resolve.signatures import Signatures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.formats.conversion.interpreter_selection import InterpreterSelection
    from trims.registry.base import Registry
    from trims.sources.descriptor import ImageDescription
    from trims.sources.remote import Fetched, Remote
    from trims.store.catalog import Catalog
    from trims.tiers.cloud import CloudImage

log = logging.getLogger(__name__)
#: Readings of one file, replaced in each, after which a lookup gives up.
_MOST_BEGUN = 8
#: Seconds for which an open trusts that the artifact's files are still as they were at the last look.
_TRUST_S = 0.5
#: Fields that manifests of older daemons did not have, and their values where they are not stated.
_YOUNGER = (("variables", ()), ("uri", None), ("model", None), ("handler", ""))
#: Names kept in memory; the oldest are looked up in the catalog again, which reads no artifact.
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Resolved:
    """A name that has been looked into.

    Attributes:
        name: Row of the registered version (see `Entry.row`), or a path; what catalog and pins know it by.
        key: Image key.
        artifact: Files and options for the converter.
        recipe: What besides the bytes decides the image.
        python: Interpreter of the environment conversion runs in; None for the daemon's own.
        identities: Of each file, to notice changes.
        checked_at_s: When they were last compared, on the store's clock.
        converted: True if making the image takes a converter child.
        mount: Mount point of the main file: looking at it may hang with that file system.
        epoch: Of the name, when the look began.
        in_place: Key under which the artifact's own files may be served; None if they may not.
        why_not: What keeps them from being served: the end of a sentence. Empty if nothing does.
        hashed: False while `key` is `in_place`, because the files were not read yet.
        certain: False if the files were read so soon after they were written that they may have changed since, although
            their identities have not.
        rests_at_s: From then on, on the store's clock, a reading of the files is certain.
        builder: Identity of the module builder's file that its options name, to notice edits; empty without one.
        cloud: The image at the address that the manifest names, if one was pushed there.
        foreign: Address of an image that others made, to whose code the manifest does not consent; else empty.
        unproven: The source of its files states digests of some that trims has not hashed yet.
    """

    name: str
    key: str
    manifest: Manifest
    artifact: Artifact
    recipe: Mapping[str, Any]
    python: Path | None
    identities: tuple[str, ...]
    checked_at_s: float
    converted: bool
    mount: str = "/"
    epoch: int = 0
    in_place: str | None = None
    why_not: str = ""
    hashed: bool = True
    certain: bool = True
    rests_at_s: float = -math.inf
    builder: Mapping[str, str] = field(default_factory=dict)
    cloud: CloudImage | None = None
    foreign: str = ""
    unproven: bool = False


ANY_READING = Reading()


class Resolver:
    """Resolves names, and remembers.

    Args:
        picker: Says which environment a framework runs in.
        artifacts: Folder for what builders make.
        always_hash: Read every artifact whenever its files would only be compared: for artifacts that are written
            through shared mappings, which changes no time that could be compared.
        in_place: Artifacts may be served from their own files before they were read.
        real_devices: Frameworks meet NVIDIA's GPUs where a manifest names a device, and no stand-in.
        remote: Fetches addresses; None for a store that has none.
        clock: Monotonic seconds.
        rest_s: Seconds until a reading of a file is certain to see all of its last write; see `rest_of`.
    """

    def __init__(
        self,
        registry: Registry,
        catalog: Catalog,
        picker: InterpreterSelection,
        artifacts: Path,
        limits: Limits,
        *,
        always_hash: bool = False,
        in_place: bool = False,
        real_devices: bool = False,
        remote: Remote | None = None,
        clock: Callable[[], float] = time.monotonic,
        rest_s: Callable[[Path], float] | None = None,
    ) -> None:
        self._registry = registry
        self._catalog = catalog
        self._picker = picker
        self._artifacts = artifacts
        self._limits = limits
        self._digests = FileDigests(catalog, trusts=not always_hash, rest_s=rest_s or rest_of)
        self._in_place, self._real_devices = in_place and not always_hash, real_devices
        #: Keys of artifacts that turned out to need a conversion, and why.
        self._not_in_place: dict[str, str] = {}
        self._clock = clock
        self.remote = remote
        self._addresses = Addresses(remote, catalog)
        #: Facts known of each row, and which row a name that was asked for led to, and when that was looked up.
        self._known: ByModel[Resolved] = ByModel()
        self._rows: ByModel[tuple[str, float]] = ByModel()
        self._changes_outside = registry.changes_outside
        self._epochs: dict[str, int] = {}
        self._lock = threading.Lock()
        #: Names whose manifests refer to another model's artifact.
        self.references = References(registry, clock, _TRUST_S)
        #: Inputs and outputs of models.
        self.signatures = Signatures(catalog)
        self._superseded: Callable[[str, str], None] = lambda before, now: None  # noqa: ARG005 - nothing follows
        self._changed: Callable[[list[str]], None] = lambda names: None  # noqa: ARG005
        self._is_on_host: Callable[[str], bool] = lambda key: False  # noqa: ARG005

    def connect(
        self,
        *,
        superseded: Callable[[str, str], None],
        changed: Callable[[list[str]], None],
        is_on_host: Callable[[str], bool] = lambda key: False,  # noqa: ARG005
    ) -> None:
        """Name who learns of results. Both are called from a worker.

        Args:
            superseded: Given a key that no name stands for any more, and the key in its place.
            changed: Given the names whose key, format or tensors are other ones than before.
            is_on_host: Says of a key whether its image can be read on this machine.
        """
        self._superseded, self._changed, self._is_on_host = superseded, changed, is_on_host

    @property
    def compares(self) -> bool:
        """Return whether a file whose identity is unchanged is taken to hold the same bytes."""
        return self._digests.trusts

    @property
    def in_place(self) -> bool:
        """Return whether any artifact may be served before it was read."""
        return self._in_place

    def known(self, name: str) -> Resolved | None:
        """Return what the name stands for, if that was looked at within the last half second.

        Memory only: never blocks.
        """
        found = self._rows.get(name)
        known = None if found is None else self._known.get(found[0])
        if found is not None and self._changes_outside and self._clock() - found[1] >= _TRUST_S:
            return None
        fresh = known is not None and self._clock() - known.checked_at_s < _TRUST_S
        return known if fresh and known is not None and known.in_place not in self._not_in_place else None

    def remembered(self, name: str) -> Resolved | None:
        """Return what the name stood for at the last look, however long ago. Memory only: never blocks."""
        found = self._rows.get(name)
        return self._known.get(name if found is None else found[0])

    def target(self, name: str) -> str:
        """Return the model that a name refers to by its manifest; else the name itself. Reads the registry.

        Raises ModelNotFoundError or ManifestError.
        """
        return name if name.startswith(FILE_PREFIX) else self.references.target(name)

    def check_reference(self, raw: Mapping[str, Any], origin: str) -> None:
        """Raise for a manifest that refers to a model which is not there, or has no artifact of its own.

        Raises ModelNotFoundError, ManifestError.
        """
        artifact = raw.get("artifact")
        if isinstance(artifact, dict) and artifact.get("model"):
            self.references.referred(parse_manifest(raw, origin))

    def epoch(self, name: str) -> int:
        """Return the epoch of a model, which rises whenever a manifest or an alias of it changes or goes."""
        return self._epochs.get(name_of(name) if "@" in name else name, 0)

    def row_of(self, name: str) -> str:
        """Return the row that a reference leads to; a path is its own. Reads the registry. Raises as `manifest`."""
        return self._entry(name).row

    def resolve(self, name: str, reading: Reading = ANY_READING) -> Resolved:
        """Look into the name, reading the artifact if its files changed. Slow; call it from a worker.

        A name that refers to another model is answered with what that name stands for, which has its name.

        Raises ModelNotFoundError, ManifestError, ArtifactError, DigestMismatchError or NotSupportedError, and what
        `reading` says.
        """
        begun = 0
        while True:
            epoch = self.epoch(name)
            try:
                known = name in self._rows and not self._changes_outside  # it has an artifact of its own
                target = name if known else self.target(name)
                if target != name:
                    resolved = self.resolve(target, reading)
                else:
                    asked = None if known else self._entry(name)
                    again = self._looked_at_again(name, reading, asked)
                    resolved = again or self._resolve(asked or self._entry(name), reading)
                    resolved = self._unless_converted(resolved)
            except ReplacedError as error:
                begun += 1
                if begun == _MOST_BEGUN:  # it never rests, or its file system has no lasting numbers of files
                    raise ArtifactChangedError(
                        f"{error} was replaced {begun} times while it was read; open it again once it rests"
                    ) from error
                continue  # with the file that is there now
            except TrimsError:
                if epoch == self.epoch(name):
                    raise
                continue  # an error about a manifest that is gone
            if target != name:
                if self._refer(name, target, epoch):
                    return resolved
            elif self._remember(name, resolved := replace(resolved, epoch=epoch), epoch):
                return resolved

    def _refer(self, name: str, target: str, epoch: int) -> bool:
        """Remember what a name refers to. Return False if its manifest changed since `epoch`."""
        with self._lock:
            if self.epoch(name) != epoch:
                return False
            self.references.remember(name, target)
            return True

    def _looked_at_again(self, name: str, reading: Reading, asked: Entry | None) -> Resolved | None:
        """Return what is known of the name, if its files are still those that were looked at; else None.

        Args:
            reading: See `resolve`.
            asked: What the registry has now; None if it has what is remembered.
        """
        known = self._known.get(self._rows.get(name, ("", 0.0))[0] if asked is None else asked.row)
        if known is not None and asked is not None and asked.manifest != known.manifest:
            return None
        if known is None or (reading.digest and not known.hashed) or self._has_gone(known):
            return None
        if not self._digests.trusts and known.checked_at_s + _TRUST_S <= self._clock():
            return None
        if reading.behind is not None and not known.certain:
            return None
        same = identities_of(known.artifact.files) == known.identities and builder_is_as_before(known)
        if self._python_again(known.manifest, required=known.converted) != known.python:
            return None  # an environment was made or removed
        return replace(known, checked_at_s=self._clock()) if same else None

    def _has_gone(self, known: Resolved) -> bool:
        """Return whether neither files nor an image are left of what an address held: it is fetched again then."""
        fetched = known.manifest.artifact.uri is not None and known.cloud is None
        return fetched and not known.artifact.files and not self._is_on_host(known.key)

    def _resolve(self, entry: Entry, reading: Reading) -> Resolved:
        name, manifest = entry.row, entry.manifest
        known = self._without_artifact(name, manifest)
        if known is not None:
            return known
        fetched = None if manifest.artifact.uri is None else self._addresses.fetch(manifest, reading)
        if fetched is not None and fetched.image is not None:
            return self._of_image(name, manifest, fetched, fetched.image)
        return self._from_artifact(name, manifest, reading)

    def _remember(self, name: str, resolved: Resolved, epoch: int) -> bool:
        """Keep a resolution, also in the catalog. Return False if the manifest changed since `epoch`."""
        with self._lock:
            if self.epoch(name) != epoch:
                return False
            row = resolved.name
            before, self._known[row] = self._known.get(row), resolved
            self._rows[name] = row, self._clock()
            for remembered in (self._known, self._rows):
                while len(remembered) > _REMEMBERED:
                    remembered.drop_oldest()
            manifest = _text_of(resolved.manifest)
            self._catalog.remember_format(row, resolved.artifact.format, manifest)
            superseded = self._catalog.remember_key(row, resolved.key, manifest) if resolved.hashed else None
        if superseded is not None:
            self._superseded(superseded, resolved.key)
        if before is None or (before.key, before.artifact.format) != (resolved.key, resolved.artifact.format):
            self._changed([name_of(resolved.name)])
        return True

    def format_known(self, row: str, manifest: Manifest) -> str:
        """Return the format of a version's artifact, as stated or found in this life or an earlier one; else empty.

        Memory only: never blocks.
        """
        if manifest.artifact.model is not None:
            target = self.references.entry_of(manifest)
            return "" if target is None else self.format_known(target.row, target.manifest)
        return manifest.artifact.format or self._catalog.format_under(row, _text_of(manifest))

    def find_format(self, name: str) -> str:
        """Look at the first bytes of a model's file for its format; empty if it has no file yet. Slow, as a look.

        Raises what `resolve` raises.
        """
        entry = self._entry(name)
        manifest = entry.manifest
        if manifest.artifact.builder is not None or not self._addresses.is_here(manifest):
            return ""
        found = manifest.artifact.format or detect(self._main_file(manifest)).format
        if found != self.format_known(entry.row, manifest):
            self._catalog.remember_format(entry.row, found, _text_of(manifest))
            self._changed([manifest.name])
        return found

    def find_trouble(self, name: str) -> str:
        """Look at a model's files and their headers for why an open must fail; empty if nothing is found. Slow.

        Contents are not read, and nothing is fetched or built.
        """
        entry = self._entry(name)
        manifest = entry.manifest
        if manifest.artifact.builder is not None or not self._addresses.is_here(manifest):
            return ""
        try:
            if self._without_artifact(entry.row, manifest) is not None:
                return ""
            main = self._main_file(manifest)
            chosen = converter(manifest.artifact.format) if manifest.artifact.format else detect(main)
            options = _options(manifest, chosen)
            check_headers(Artifact(chosen.format, chosen.files(main, options), options, manifest.origin))
        except BrokenWeightsError as error:
            return str(error)
        return ""

    def find_refusal(self, manifest: Manifest) -> str:
        """Return why every request of a model would be refused by its predictor; empty if nothing is found. Slow.

        Of what is not here yet, only what the manifest states counts. Raises what `resolve` raises.
        """
        source, chosen, main = manifest.artifact, None, None
        if source.format:
            chosen = converter(source.format)
        if source.model is None and source.builder is None and self._addresses.is_here(manifest):
            main = self._main_file(manifest)
            chosen = chosen or detect(main)
        try:
            check_settings(manifest, chosen, main)
        except NotSupportedError as error:
            return str(error)
        framework = framework_in(manifest, "" if chosen is None else chosen.format)
        return why_not_on_device(manifest, framework, self._versions_for(manifest, framework))

    def _versions_for(self, manifest: Manifest, framework: str) -> Callable[[Sequence[str]], Mapping[str, str]] | None:
        """Return what looks into the environment of a model's predictors; None where no framework meets a real GPU."""
        if not (self._real_devices and framework):
            return None
        version = manifest.framework.version if manifest.framework is not None else ""
        python = self._picker.again(manifest.name, framework, version, required=False)
        return Environment(python).versions

    def where_now(self, name: str) -> str | None:
        """Return `where` if that is known without reading anything, else None. Memory only: never blocks."""
        known = self.remembered(name)
        if known is not None:
            return known.mount
        return mount_of_now(Path(name.removeprefix(FILE_PREFIX))) if name.startswith(FILE_PREFIX) else None

    def where(self, name: str) -> str:
        """Return what a look into the name may hang on: the mount point of its file, or `builder`. Reads the registry.

        Raises ModelNotFoundError or ManifestError.
        """
        return self.where_of(self.manifest(name))

    def where_of(self, manifest: Manifest) -> str:
        """Return what a look at a manifest's files may hang on, as `where`."""
        source = manifest.artifact
        if source.uri is not None:
            folder = self._addresses.folder_of(source.uri)
            return server_of(source.uri) if folder is None else mount_of(folder)
        return "builder" if source.path is None else mount_of(Path(manifest.origin, source.path))

    def manifest(self, name: str) -> Manifest:
        """Return the manifest that says what a name opens: that of the model it refers to; one made up for a path."""
        return self._entry(name).manifest

    def _entry(self, name: str) -> Entry:
        if name.startswith(FILE_PREFIX):
            return Entry(name, Manifest(name=name, artifact=ArtifactSource(path=name.removeprefix(FILE_PREFIX))))
        return self.references.followed(name)

    def forget(self, name: str) -> None:
        """Make lookups of a model count no more, in all its versions: a manifest or an alias changed, or went."""
        model = name_of(name)
        with self._lock:
            self._epochs[model] = self.epoch(model) + 1
            for remembered in (self._known, self._rows):
                remembered.drop_model(model)
            self.references.forget(model)

    def looked_stale(self, name: str) -> None:
        """Drop trust in what is known of the name, so that the next look compares its files."""
        with self._lock:
            known = self.remembered(self.references.of(name))
            if known is not None:
                self._known[known.name] = replace(known, checked_at_s=-math.inf)

    def _from_artifact(self, name: str, manifest: Manifest, reading: Reading) -> Resolved:
        main = self._main_file(manifest, reading)
        chosen = converter(manifest.artifact.format) if manifest.artifact.format else detect(main)
        return self._look(name, manifest, chosen, main, reading)

    def _without_artifact(self, name: str, manifest: Manifest) -> Resolved | None:
        """Return the last image of a registered model whose file is gone; None for a path, or if the file is there."""
        source = manifest.artifact
        if name.startswith(FILE_PREFIX) or (source.path is None and source.uri is None):
            return None
        if source.uri is not None:
            main, is_there = Path(source.uri), self._addresses.is_here(manifest)
        else:
            main = Path(manifest.origin, str(source.path)).absolute()
            is_there = main.exists()
        key = None if is_there else self._catalog.key_under(name, _text_of(manifest))
        record = self._catalog.image(key) if key is not None else None
        if record is None or (source.uri is not None and not self._is_on_host(record.key)):
            return None  # what an address held is fetched again once no image of it is left
        log.warning("%s: %s is gone; the image made of it serves for as long as there is one", name, source.uri or main)
        chosen = converter(str(record.recipe["format"]))
        options = _options(manifest, chosen)
        return Resolved(
            name=name,
            key=record.key,
            manifest=manifest,
            artifact=Artifact(chosen.format, () if source.uri is not None else (main,), options),
            recipe=record.recipe,
            python=self._python_again(manifest, required=chosen.needs_child(options)),
            identities=() if source.uri is not None else identities_of((main,)),
            checked_at_s=self._clock(),
            converted=chosen.needs_child(options),
            mount=server_of(source.uri) if source.uri is not None else _true_mount(main),
            foreign="" if self._is_made_here(manifest) else without_secret(str(source.uri)),
        )

    def _of_image(self, name: str, manifest: Manifest, fetched: Fetched, image: ImageDescription) -> Resolved:
        """Return a resolution to an image that was pushed to the manifest's address: nothing is left to convert."""
        return Resolved(
            name=name,
            key=fetched.image_key,
            manifest=manifest,
            artifact=Artifact(image.format, (), {}),
            recipe=image.recipe,
            python=None,
            identities=(),
            checked_at_s=self._clock(),
            converted=True,
            mount=server_of(fetched.address),
            cloud=self._addresses.image(name, fetched),
            foreign=""
            if manifest.artifact.allow_pickle or self._is_own_image(fetched)
            else without_secret(fetched.address),
        )

    def _is_own_image(self, fetched: Fetched) -> bool:
        """Return whether this daemon pushed an image that it had made: one that it had pulled stays its publisher's."""
        assert self.remote is not None, "it fetched the image"
        others = (each.image_key for each in self.remote.images() if not each.pushed)
        return fetched.pushed and fetched.image_key not in others

    def _is_made_here(self, manifest: Manifest) -> bool:
        """Return whether the last image of a lost artifact was made here, or its manifest consents to its code.

        An address of which nothing is known any more may have had an image.
        """
        uri = manifest.artifact.uri
        if uri is None or manifest.artifact.allow_pickle:
            return True
        seen = None if self.remote is None else self.remote.seen(uri)
        return seen is not None and seen.get("image") is None

    def _look(self, name: str, manifest: Manifest, chosen: Converter, main: Path, reading: Reading) -> Resolved:
        options = _options(manifest, chosen)
        with naming_foreign(chosen.format, [main]):
            files = chosen.files(main, options)
        artifact = Artifact(chosen.format, files, options, manifest.origin)
        python = self._python(manifest, required=chosen.needs_child(options))
        made_by = recipe(chosen, artifact, Environment(python))
        identities = identities_of(files)
        known = self._digests.known(files, identities)
        facts = (identities, made_by)
        in_place, why_not = self._in_place_key(manifest, chosen, artifact, facts, known)
        if in_place is None and not reading.digest:
            raise DigestNeededError(name)
        rests_at_s = self._clock() + max(map(self._digests.rest_s, files))
        check = partial(self._check_size, manifest, artifact, reading)
        try:
            stated = self._addresses.unproven(manifest, files)
            digests = self._digests.read(files, manifest, reading, check, stated) if reading.digest else known
        except DigestMismatchError as error:
            self._addresses.note_damage(manifest, files, self._digests)
            if in_place is not None:  # from now on every open of it sees this error
                self.needs_conversion(name, in_place, str(error))
            raise
        if in_place is None and digests is not None:
            in_place, why_not = self._in_place_key(manifest, chosen, artifact, facts, digests)
        key = _key(files, [each.blake3 for each in digests], made_by) if digests is not None else str(in_place)
        self.signatures.look(chosen, artifact, key, in_place)
        return Resolved(
            name=name,
            key=key,
            in_place=in_place,
            why_not=why_not,
            hashed=digests is not None,
            unproven=digests is None and bool(stated),
            certain=digests is None or all(each.certain for each in digests),
            rests_at_s=rests_at_s,
            manifest=manifest,
            artifact=artifact,
            recipe=made_by,
            python=python,
            identities=identities,
            checked_at_s=self._clock(),
            converted=chosen.needs_child(options),
            builder=made_by.get("builder", {}),
            mount=_true_mount(files[0]),
        )

    def _in_place_key(
        self,
        manifest: Manifest,
        chosen: Converter,
        artifact: Artifact,
        facts: tuple[object, ...],
        digests: Sequence[Digests] | None,
    ) -> tuple[str | None, str]:
        """Return the key under which the artifact's own files may be served (a hash of identities), or why not."""
        why = self._why_not(manifest, chosen, artifact, digests)
        if why:
            return None, why
        key = str(blake3.blake3(json.dumps(["in place", *facts], sort_keys=True).encode()).hexdigest())
        return (None, self._not_in_place[key]) if key in self._not_in_place else (key, "")

    def _why_not(
        self, manifest: Manifest, chosen: Converter, artifact: Artifact, digests: Sequence[Digests] | None
    ) -> str:
        """Return why the artifact's own files may not be served as they are now; empty if they may.

        Files that another user may change are read first, and so are those of which a digest is stated, until it is
        known to be right, or whose manifest asks for it. A manifest that names a place, pins or persists wants one.
        """
        source = manifest.artifact
        if not self._in_place:
            return "by its settings (`trust`, `always_hash`) this daemon reads every artifact before it serves it"
        if source.trust == "verified" or not self._digests.prove(artifact.files, manifest, digests):
            return "its manifest (`sha256`, or `trust: verified`) has its files read first"
        if not may_be_in_place(chosen, artifact.options):
            return f"its format {chosen.format}, with its options, is always converted"
        if _wants_image(manifest):
            return "its manifest wants an image (`place`, `pin`, or `persist: always`)"
        others = [file for file in artifact.files if not _is_own(file)]
        return f"{others[0]} may be written by users other than the daemon's (chown, chmod go-w)" if others else ""

    def _unless_converted(self, resolved: Resolved) -> Resolved:
        """Return the resolution. Raises DigestNeededError if its artifact turned out meanwhile to need a conversion.

        Otherwise a look that began before that was known would send its asks round in a circle.
        """
        if resolved.in_place is None or resolved.in_place not in self._not_in_place:
            return resolved
        if not resolved.hashed:
            raise DigestNeededError(resolved.name)
        return replace(resolved, in_place=None, why_not=self._not_in_place[resolved.in_place])

    def needs_conversion(self, name: str, in_place: str, why: str) -> None:
        """Have an artifact read before the next answer: it turned out not to be served from its own files."""
        with self._lock:
            if in_place not in self._not_in_place:
                log.info("%s is converted: %s", name, why)
            self._not_in_place[in_place] = why
            while len(self._not_in_place) > _REMEMBERED:
                self._not_in_place.pop(next(iter(self._not_in_place)))

    def _python(self, manifest: Manifest, *, required: bool) -> Path | None:
        wanted = manifest.framework
        if wanted is None:
            return None
        return self._picker.pick(manifest.name, wanted.name, wanted.version, required=required)

    def _python_again(self, manifest: Manifest, *, required: bool) -> Path | None:
        """Return the Python of a model's environment, at little cost; None if no environment satisfies."""
        wanted = manifest.framework
        if wanted is None:
            return None
        try:
            return self._picker.again(manifest.name, wanted.name, wanted.version, required=required)
        except TrimsError:
            return None

    def _main_file(self, manifest: Manifest, reading: Reading = ANY_READING) -> Path:
        source = manifest.artifact
        if source.uri is not None:
            main = main_of(manifest, self._addresses.fetch(manifest, reading))
        elif source.path is not None:
            main = Path(manifest.origin, source.path)
        elif source.package is not None:
            main = _inside_package(*source.package)
        else:
            main = self._build(manifest)
        if main.is_dir():
            main = _main_in(manifest, main)
        if not main.is_file():
            if manifest.name.startswith(FILE_PREFIX):
                raise ArtifactNotFoundError(f"{main} is not a file; correct the path, or put it there")
            raise ArtifactNotFoundError(
                f"{manifest.name}: {main} is not a file; correct the manifest's artifact, or put it there"
            )
        return main.absolute()

    def _build(self, manifest: Manifest) -> Path:
        """Run the builder once; the folder of its output is named by a hash of what it is made from."""
        builder = manifest.artifact.builder
        assert builder is not None, "validate() admits no manifest without a source"
        wanted = json.dumps([builder.call, builder.args, manifest.version], sort_keys=True)
        folder = self._artifacts / f"{manifest.name}-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
        return build_artifact(
            builder.call,
            builder.args,
            folder,
            python=self._python(manifest, required=False),
            limits=self._limits,
            extra_paths=(Path(manifest.origin),) if manifest.origin else (),
        )

    @staticmethod
    def _check_size(manifest: Manifest, artifact: Artifact, reading: Reading) -> None:
        """Have requests refused for which the image is too large, before a long file is read. Raises as `Sizes`."""
        if reading.sizes is None:
            return
        progress, stated = reading.progress or Progress(), manifest.residency.place
        if progress.least_bytes is None:
            in_all = sum(file.stat().st_size for file in artifact.files)
            large = reading.sizes.may_refuse(in_all, stated)
            progress.least_bytes = least_image_bytes(artifact) if large else 0
        reading.sizes.refuse(progress.least_bytes, stated)


def builder_is_as_before(resolved: Resolved) -> bool:
    """Return whether the file of the module builder is unchanged since the name was looked into. Reads that file."""
    return not resolved.builder or builder_of_options(resolved.artifact) == resolved.builder


def _true_mount(main: Path) -> str:
    """Return the mount point of the file itself: it was looked at just now, so links may be followed."""
    return mount_of(Path(os.path.realpath(main)))


def _options(manifest: Manifest, chosen: Converter) -> dict[str, Any]:
    """Return the manifest's options; for a device, also its format's options there that the manifest does not set."""
    place = manifest.residency.place
    on_device = place is not None and place.tier is TierKind.GPU
    options = {**(getattr(chosen, "device_options", {}) if on_device else {}), **manifest.artifact.options}
    if manifest.artifact.allow_pickle:
        options["allow_pickle"] = True
    return options


def _wants_image(manifest: Manifest) -> bool:
    """Return whether the manifest wants an image made of the artifact, in memory or on disk."""
    keep = manifest.residency
    return keep.place not in (None, FILE) or keep.pin or keep.persist == "always"


def _is_own(file: Path) -> bool:
    """Return whether only this user or root may write to the file."""
    status = file.stat()
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _text_of(manifest: Manifest) -> str:
    """Return the text of a manifest that the catalog compares; an older daemon's is the same."""
    return json.dumps(manifest, default=_plain, sort_keys=True)


def _plain(part: Any) -> Any:
    if isinstance(part, msgspec.Struct):
        fields = msgspec.structs.asdict(part)
        for name, absent in _YOUNGER:
            if fields.get(name, name) == absent:
                del fields[name]
        if "instances" in fields:
            fields["instances"] = fields["instances"] or 1  # what an older daemon wrote where none were stated
        return fields
    return asdict(part) if is_dataclass(part) and not isinstance(part, type) else str(part)


def _main_in(manifest: Manifest, folder: Path) -> Path:
    try:
        return main_in(folder)
    except CallerError as error:
        raise ArtifactError(f"{manifest.name}: {error}") from error


def _inside_package(package: str, path: str) -> Path:
    """Return a file inside an installed package, found without importing it."""
    spec = importlib.util.find_spec(package.split(".", maxsplit=1)[0])
    if spec is None or not spec.submodule_search_locations:
        raise ArtifactError(f"the Python package {package!r} is not installed beside the daemon; install it first")
    return Path(spec.submodule_search_locations[0]).joinpath(*package.split(".")[1:], path)


def _key(files: tuple[Path, ...], digests: list[str], made_by: Mapping[str, Any]) -> str:
    names = [file.name for file in files[1:]]  # the main file's name says nothing about the image
    facts: list[Any] = [digests, names, dict(made_by)]
    return str(blake3.blake3(json.dumps(facts, sort_keys=True).encode()).hexdigest())
