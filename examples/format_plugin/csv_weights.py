"""A format from outside trims: one matrix of numbers as a CSV file, named `weight` in the image.

Such a file begins with its shape:

    # trims matrix 2x3
    1.0,2.5,-3
    0,1e-3,4
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, ClassVar

from trims.core.errors import ArtifactError
from trims.formats.base import check_options
from trims.image.plan import ImagePlan, SourceTensor, plan_image
from trims.image.source import SourceFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trims.formats.base import Artifact

_BEGIN = b"# trims matrix "


class CsvConverter:
    """Needs no framework, so the daemon reads such files itself."""

    format: ClassVar[str] = "csv-matrix"
    #: To be raised when the same file gives another image.
    version: ClassVar[int] = 1
    host_specific: ClassVar[bool] = False

    def needs_child(self, options: Mapping[str, Any]) -> bool:
        """Nothing here runs what the file's author wrote."""
        del options
        return False

    def frameworks(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The image depends on no framework's version."""
        del options
        return ()

    def claims(self, main: Path, first_bytes: bytes) -> bool:
        """By the first line."""
        del main
        return first_bytes.startswith(_BEGIN)

    def files(self, main: Path, options: Mapping[str, Any]) -> tuple[Path, ...]:
        """The file itself."""
        check_options(main, options, ())
        if not main.is_file():
            raise ArtifactError(f"{main} is not there; correct the manifest's artifact")
        return (main,)

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Read the numbers; they are written when there is room for the image."""
        main = artifact.files[0]
        check_options(main, artifact.options, ())
        file = SourceFile.look(main)
        first, *lines = main.read_text(encoding="utf-8").splitlines() or [""]
        stated = first.removeprefix(_BEGIN.decode())
        rows = [_numbers(main, number, line) for number, line in enumerate(lines, 2)]
        found = {f"{len(rows)}x{len(row)}" for row in rows}
        if found != {stated}:
            raise ArtifactError(
                f"{main} states a matrix of {stated or 'nothing'} and has {found or 'none'}; cut short?"
            )

        def fill(place: memoryview) -> None:
            place.cast("B")[:] = b"".join(row.tobytes() for row in rows)

        source = SourceTensor("weight", "F32", (len(rows), len(rows[0])), fill=fill)
        return plan_image([source], files=(file,))


def _numbers(main: Path, number: int, line: str) -> array[float]:
    try:
        return array("f", map(float, line.split(",")))
    except ValueError as error:
        raise ArtifactError(f"{main}, line {number}: {error}") from error
