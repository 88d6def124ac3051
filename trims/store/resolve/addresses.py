"""Artifacts and images at addresses, as the resolver needs them: files of this machine, or an image that is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from trims.core.errors import ArtifactError, CallerError, DigestMismatchError, NotSupportedError
from trims.formats.folders import weights_in
from trims.formats.transformers.folder import main_in
from trims.manifests.addresses import path_of, without_secret
from trims.store.catalog import ImageRecord, identity_of
from trims.store.resolve.file_digests import names_in_folder
from trims.tiers.cloud import CloudImage
from trims.trace.spans import span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.manifests.manifest import Manifest
    from trims.sources.remote import Fetched, Remote
    from trims.store.catalog import Catalog
    from trims.store.resolve.file_digests import FileDigests
    from trims.store.resolve.hashing import Reading


class Addresses:
    """Content of the addresses that manifests name.

    Args:
        remote: Fetches; None for a store that fetches nothing.
        catalog: Keeps what is found out on the way.
    """

    def __init__(self, remote: Remote | None, catalog: Catalog) -> None:
        self.remote = remote
        self._catalog = catalog

    def is_here(self, manifest: Manifest) -> bool:
        """Return whether the files of a manifest's address are on this machine, or it names none."""
        uri = manifest.artifact.uri
        return uri is None or (self.remote is not None and self.remote.here(uri) is not None)

    def folder_of(self, uri: str) -> Path | None:
        """Return the folder of what was fetched from an address; None if it is not here, or an image."""
        here = None if self.remote is None else self.remote.here(uri)
        return None if here is None else here.folder

    def fetch(self, manifest: Manifest, reading: Reading) -> Fetched:
        """Return what lies at a manifest's address, fetched if it is not here. Blocks.

        Raises DigestMismatchError for files that are known to be damaged, and as `Remote.fetch`.
        """
        uri = str(manifest.artifact.uri)
        if self.remote is None:
            raise NotSupportedError(f"{manifest.name}: nothing is fetched here, so {uri} cannot be opened")
        here = self.remote.here(uri, origin=manifest.origin, stated=manifest.artifact.sha256)
        if here is not None:
            if damage := here.damage():
                raise DigestMismatchError(damage)
            return here
        with span("fetch", address=without_secret(uri)):
            found = self.remote.fetch(
                uri, origin=manifest.origin, stated=manifest.artifact.sha256, wanted=reading.wanted
            )
        self._remember(found)
        return found

    def _remember(self, found: Fetched) -> None:
        """Keep the digests that were computed while the files came: they need not be read again for them."""
        for name in found.fetched:
            digests, path = found.digests[name], found.files[name]
            if "blake3" in digests:
                self._catalog.remember_digests(
                    str(path.absolute()), identity_of(path), digests["blake3"], digests.get("sha256")
                )

    def unproven(self, manifest: Manifest, files: Sequence[Path]) -> dict[str, str]:
        """Return, by name in the folder, the sha256 that a source states of files that trims has not hashed yet."""
        uri = manifest.artifact.uri
        found = None if uri is None or self.remote is None else self.remote.here(uri)
        if found is None:
            return {}
        names = {path.absolute(): name for name, path in found.files.items() if name not in found.proven}
        inside = zip(files, names_in_folder(files), strict=True)
        stated = {name: found.digests[names[file]].get("sha256") for file, name in inside if file in names}
        return {name: digest for name, digest in stated.items() if digest is not None}

    def note_damage(self, manifest: Manifest, files: Sequence[Path], digests: FileDigests) -> None:
        """Keep over restarts which files were found not to be what their source states."""
        uri = manifest.artifact.uri
        found = None if uri is None or self.remote is None else self.remote.here(uri)
        if uri is None or self.remote is None or found is None:
            return
        names = {path.absolute(): name for name, path in found.files.items()}
        damaged = {}
        for file in files:
            name = names.get(file)
            known = None if name is None else digests.known_of(file)
            stated = None if name is None else found.stated[name].get("sha256")
            if (
                name is not None
                and known is not None
                and known.sha256 is not None
                and stated not in (None, known.sha256)
            ):
                damaged[name] = known.sha256
        self.remote.note_damage(uri, damaged)

    def image(self, name: str, fetched: Fetched) -> CloudImage:
        """Return the image that was pushed to an address; what it says of its model is kept."""
        image, key = fetched.image, fetched.image_key
        assert image is not None, "only images are asked for"
        if image.signature and self._catalog.signature_of(key) is None:
            self._catalog.remember_signature(key, image.signature)
        if self._catalog.image(key) is None:
            recipe = {"format": image.format, **image.recipe}
            self._catalog.remember_image(ImageRecord(key, name, recipe, image.nbytes, image.cost_s))
        return cloud_image(fetched)


def cloud_image(fetched: Fetched) -> CloudImage:
    """Return an image at an address as the cloud tier knows it."""
    image = fetched.image
    assert image is not None, "only images are asked for"
    address = fetched.image_address
    return CloudImage(fetched.image_key, image.digest, image.nbytes, address, image.checksums, image.cost_s)


def server_of(address: str) -> str:
    """Return what a look at an address hangs on, in place of a mount point: its scheme and host, or bucket."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


def main_of(manifest: Manifest, fetched: Fetched) -> Path:
    """Return which of the files of an address has the weights. Raises ArtifactError."""
    if len(fetched.files) == 1:
        return next(iter(fetched.files.values()))
    uri = str(manifest.artifact.uri)
    named = (unquote(path_of(uri)) if uri.startswith("http") else path_of(uri)).rpartition("/")[2]
    if named in fetched.files:
        return fetched.files[named]
    folder = Path(str(fetched.folder))
    try:
        return main_in(folder) if _may_be_a_model_folder(manifest) else weights_in(folder)
    except CallerError as error:
        raise ArtifactError(f"{manifest.name}: {error}") from error


def _may_be_a_model_folder(manifest: Manifest) -> bool:
    """Return whether a manifest says nothing that makes its folder something else than a Hugging Face model."""
    source, framework = manifest.artifact, manifest.framework
    plain = source.format in (None, "transformers") and "module" not in source.options
    return plain and (framework is None or framework.name == "transformers")
