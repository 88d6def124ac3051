"""Base of the converters of artifacts that are one file, lie in it as they are in memory, and know no options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.formats.base import check_options
from trims.image.source import SourceFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class OneFile:
    """See the module."""

    def may_be_in_place(self, options: Mapping[str, Any]) -> bool:
        """Return True: what is in the file lies there as it does in memory, as a rule."""
        del options
        return True

    def frameworks(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return no frameworks: the image depends on the version of none."""
        del options
        return ()

    def files(self, main: Path, options: Mapping[str, Any]) -> tuple[Path, ...]:
        """Return the one file."""
        check_options(main, options, ())
        return (SourceFile.look(main).path,)
