"""Looks at artifacts: from a manifest to an image key, by files, digests and recipe."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3

from trims.core.errors import (
    ArtifactError,
    ArtifactNotFoundError,
    BrokenWeightsError,
    CallerError,
    DigestMismatchError,
    NotSupportedError,
    TrimsError,
)
from trims.core.place import TierKind
from trims.formats.base import Artifact, Converter, Limits
from trims.formats.conversion.build import build_artifact
from trims.formats.conversion.conversion import builder_of_options, converter, detect, recipe
from trims.formats.conversion.environments import Environment
from trims.formats.in_place import check_headers, least_image_bytes
from trims.formats.plugins import naming_foreign
from trims.formats.settings import check_settings
from trims.formats.transformers.folder import main_in
from trims.manifests.addresses import without_secret
from trims.manifests.device_support import why_not_on_device
from trims.manifests.runs import framework_in
from trims.store.catalog import FILE_PREFIX, identities_of
from trims.store.file_names import check_identity
from trims.store.resolve.addresses import Addresses, main_of, server_of
from trims.store.resolve.hashing import DigestNeededError, Progress, Reading
from trims.store.resolve.in_place import InPlaceKeys
from trims.store.resolve.mounts import mount_of
from trims.store.resolve.resolved import Resolved, text_of
from trims.store.resolve.signatures import Signatures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.formats.conversion.interpreter_selection import InterpreterSelection
    from trims.manifests.manifest import Manifest
    from trims.sources.descriptor import ImageDescription
    from trims.sources.remote import Fetched, Remote
    from trims.store.catalog import Catalog
    from trims.store.resolve.file_digests import FileDigests

log = logging.getLogger(__name__)
ANY_READING = Reading()


class ArtifactLooks:
    """Looks at the artifacts of manifests: at their files, at what addresses hold, at what builders make.

    Args:
        artifacts: Folder for what builders make.
        in_place: Artifacts may be served from their own files before they were read.
        real_devices: Frameworks meet NVIDIA's GPUs where a manifest names a device, and no stand-in.
        remote: Fetches addresses; None for a store that has none.

    Attributes:
        is_on_host: Returns whether the image of a key can be read on this machine.
    """

    def __init__(
        self,
        catalog: Catalog,
        picker: InterpreterSelection,
        artifacts: Path,
        limits: Limits,
        digests: FileDigests,
        *,
        in_place: bool,
        real_devices: bool,
        remote: Remote | None,
        clock: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._picker = picker
        self._artifacts = artifacts
        self._limits = limits
        self._digests = digests
        #: Keys under which artifacts are served from their own files.
        self.in_place = InPlaceKeys(digests, enabled=in_place)
        self._real_devices = real_devices
        self.remote = remote
        self._clock = clock
        self._addresses = Addresses(remote, catalog)
        #: Inputs and outputs of models.
        self.signatures = Signatures(catalog)
        self.is_on_host: Callable[[str], bool] = lambda key: False  # noqa: ARG005

    def look(self, name: str, manifest: Manifest, reading: Reading) -> Resolved:
        """Look into a manifest; see `Resolver.resolve`. Slow."""
        known = self._without_artifact(name, manifest)
        if known is not None:
            return known
        fetched = None if manifest.artifact.uri is None else self._addresses.fetch(manifest, reading)
        if fetched is not None and fetched.image is not None:
            return self._of_image(name, manifest, fetched, fetched.image)
        return self._from_artifact(name, manifest, reading)

    def is_as_before(self, known: Resolved) -> bool:
        """Return whether files, builder and environment are still those that were looked at."""
        same = identities_of(known.artifact.files) == known.identities and builder_is_as_before(known)
        return same and self._python_again(known.manifest, required=known.converted) == known.python

    def format_of_file(self, manifest: Manifest) -> str:
        """Look at the first bytes of a model's file for its format; empty if it has no file yet. Slow."""
        if manifest.artifact.builder is not None or not self._addresses.is_here(manifest):
            return ""
        return manifest.artifact.format or detect(self._main_file(manifest)).format

    def where(self, manifest: Manifest) -> str:
        """Return what a look at a manifest's files may hang on: a mount point, a server, or `builder`."""
        source = manifest.artifact
        if source.uri is not None:
            folder = self._addresses.folder_of(source.uri)
            return server_of(source.uri) if folder is None else mount_of(folder)
        return "builder" if source.path is None else mount_of(Path(manifest.origin, source.path))

    def has_gone(self, known: Resolved) -> bool:
        """Return whether neither files nor an image are left of what an address held: it is fetched again then."""
        fetched = known.manifest.artifact.uri is not None and known.cloud is None
        return fetched and not known.artifact.files and not self.is_on_host(known.key)

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
        key = None if is_there else self._catalog.key_under(name, text_of(manifest))
        record = self._catalog.image(key) if key is not None else None
        if record is None or (source.uri is not None and not self.is_on_host(record.key)):
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
        check_identity(name, identities := identities_of(files))
        known = self._digests.known(files, identities)
        facts = (identities, made_by)
        in_place, why_not = self.in_place.key(manifest, chosen, artifact, facts, known)
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
                self.in_place.needs_conversion(name, in_place, str(error))
            raise
        if in_place is None and digests is not None:
            in_place, why_not = self.in_place.key(manifest, chosen, artifact, facts, digests)
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

    def find_trouble(self, row: str, manifest: Manifest) -> str:
        """Look at a model's files and their headers for why an open must fail; empty if nothing is found. Slow.

        Contents are not read, and nothing is fetched or built.
        """
        if manifest.artifact.builder is not None or not self._addresses.is_here(manifest):
            return ""
        try:
            if self._without_artifact(row, manifest) is not None:
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
