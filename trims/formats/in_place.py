"""Planning an artifact in place: the way in which its own files are an image already, found from headers alone."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from trims.core.errors import BrokenWeightsError, ImageError, InternalError, NotInPlaceError
from trims.core.layout import DTYPE_BYTES, element_count
from trims.core.units import format_bytes
from trims.formats.base import is_in_place_format, states_size
from trims.formats.conversion.conversion import NOT_NEEDED, Conversion, broken, converter, is_large
from trims.formats.plugins import naming_foreign
from trims.image.in_place import InPlacePlan, plan_in_place
from trims.image.program import ONNX_ORIGINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from trims.formats.base import Artifact, Converter

log = logging.getLogger(__name__)


def may_be_in_place(chosen: Converter, options: Mapping[str, Any]) -> bool:
    """Return whether artifacts of this format are worth a look: plans made of bytes in files, without a child."""
    return is_in_place_format(chosen) and chosen.may_be_in_place(options)


def check_headers(artifact: Artifact) -> None:
    """Look at the headers of an artifact whose tensors may be served in place; small ones only, and no contents.

    Raises ArtifactError for what is wrong with them.
    """
    chosen = converter(artifact.format)
    if not may_be_in_place(chosen, artifact.options) or is_large(chosen, artifact):
        return
    if is_in_place_format(chosen):
        with contextlib.suppress(NotInPlaceError):
            chosen.contents(artifact)


def least_image_bytes(artifact: Artifact) -> int:
    """Return the fewest bytes that an image of the artifact can take, by its headers; 0 if they do not say.

    They do where the tensors lie in the files as an image has them, or where a framework only adds to these. ONNX
    Runtime may leave initializers out, so nothing is said of its models.
    """
    chosen = converter(artifact.format)
    if not may_be_in_place(chosen, artifact.options):
        return 0
    try:
        if is_large(chosen, artifact):
            return chosen.least_bytes(artifact) if states_size(chosen) else 0
        if not is_in_place_format(chosen):
            return 0
        found = chosen.contents(artifact)
    except (NotInPlaceError, BrokenWeightsError):  # the conversion reports it
        return 0
    if found.program is not None and found.program.kind == ONNX_ORIGINAL:
        return 0
    own = [source for source in found.sources if source.tied_to is None]
    return sum(DTYPE_BYTES[source.dtype] * element_count(source.shape) for source in own)


class InPlace(Conversion):
    """See `Conversion`. There is nothing to write: the plan is all."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._plan: InPlacePlan | None = None

    def plan(self) -> int:
        """See `Conversion.plan`. Raises NotInPlaceError for an artifact that must be converted."""
        with naming_foreign(self._artifact.format, self._artifact.files):
            return self._planned()

    def _planned(self) -> int:
        chosen = converter(self._artifact.format)
        if is_large(chosen, self._artifact):
            raise NotInPlaceError(f"{self._artifact.files[0]}: its description is too large to be parsed here")
        if not is_in_place_format(chosen):
            raise InternalError(f"artifacts of format {chosen.format} are never served in place")
        try:
            self._plan = plan_in_place(chosen.contents(self._artifact))
        except ImageError as error:
            raise broken(self._artifact, error) from error
        if unaligned := self._plan.unaligned_bytes:
            copied = f"{format_bytes(unaligned)} of it are not aligned to their elements"
            log.info("%s: %s: each process copies those that it reads", self._artifact.files[0], copied)
        return self._plan.nbytes

    def planned(self) -> InPlacePlan:
        """Return the plan that `plan` made."""
        if self._plan is None:
            raise InternalError("planned() before plan()")
        return self._plan

    def write(self, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        """Raise InternalError: nothing is written for an artifact in place."""
        del fd, on_progress
        raise InternalError("an artifact in place is not written")

    def cancel(self, why: str = NOT_NEEDED) -> None:
        """See `Conversion.cancel`. Planning takes milliseconds."""

    def close(self) -> None:
        """See `Conversion.close`."""
