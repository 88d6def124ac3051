"""Inputs and outputs of models, by image: from their graphs, as they are looked into, else from their first runs.

The key is the image's, so that what is known is never that of another graph. It is kept in the catalog.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, TrimsError
from trims.formats.base import states_signature
from trims.formats.conversion.conversion import is_large
from trims.manifests.serving import NO_SIGNATURE, Signature, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trims.formats.base import Artifact, Converter
    from trims.store.catalog import Catalog

log = logging.getLogger(__name__)


class Signatures:
    """Signatures of the images in a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def of(self, key: str) -> Signature:
        """Return what is known of an image's inputs and outputs; empty if that is nothing."""
        text = self._catalog.signature_of(key) if key else None
        return Signature() if text is None else _read(text)

    def look(self, chosen: Converter, artifact: Artifact, key: str, in_place: str | None) -> None:
        """Find out what an artifact says of itself, unless its image is known. Reads files; call it from a worker.

        Args:
            chosen: The converter of its format.
            in_place: Key under which its files are served, and under which something may be known; or None.
        """
        if self._catalog.signature_of(key) is not None:
            return
        before = None if in_place in (None, key) else self._catalog.signature_of(str(in_place))
        if before is not None:
            self._catalog.remember_signature(key, before)
            return
        read = chosen.signature if states_signature(chosen) else None
        if read is not None:
            self._catalog.remember_signature(key, _written(_stated(chosen, read, artifact)))

    def learn(self, keys: Iterable[str], signature: Signature) -> None:
        """Keep what a run had, for images of which nothing else is known. Raises CallerError for what no run can have.

        Args:
            keys: Keys of one image, and of its artifact's files.
            signature: Names, types and numbers of dimensions count.
        """
        if not signature.is_valid:
            raise CallerError("the inputs or outputs of a run have names, types or shapes that no tensors can have")
        for key in keys:
            known = self.of(key)
            stated = (known.inputs or known.outputs) and not known.seen
            if key and not stated and not (known.inputs and (known.outputs or not signature.outputs)):
                self._catalog.remember_signature(key, _written(replace(signature, seen=True)))


def _stated(chosen: Converter, read: Callable[[Artifact], Signature], artifact: Artifact) -> Signature:
    try:
        if is_large(chosen, artifact):  # parsing it would hold the interpreter lock, for which opens wait
            log.info("%s: its inputs and outputs are not known until it is loaded: it is large", artifact.files[0])
            return NO_SIGNATURE
        found = read(artifact)
    except TrimsError as error:
        log.info("%s: its inputs and outputs are not known until it is loaded: %s", artifact.files[0], error)
        return Signature()
    return found if found.is_valid else Signature()


def _written(signature: Signature) -> str:
    def listed(tensors: Iterable[TensorType]) -> list[list[object]]:
        return [[each.name, each.dtype, each.shape] for each in tensors]

    return json.dumps([listed(signature.inputs), listed(signature.outputs), signature.seen])


def _read(text: str) -> Signature:
    inputs, outputs, seen = json.loads(text)

    def tensors(listed: Any) -> tuple[TensorType, ...]:
        return tuple(TensorType(name, dtype, tuple(shape)) for name, dtype, shape in listed)

    return Signature(tensors(inputs), tensors(outputs), bool(seen))
