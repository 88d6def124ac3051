"""Pages of one file that are mapped into an image of another.

A module of its own, because most clients never need it, and making a class of this kind takes half a millisecond of
each start.
"""

from __future__ import annotations

from typing import NamedTuple


class Pages(NamedTuple):
    """Pages of another file that are mapped over a part of the first; all but `nbytes` are multiples of a page.

    Attributes:
        fd: Open for reading; the mapping does not need it afterwards.
        begin: Where they lie in the mapping.
        offset: Where they begin in the file.
    """

    fd: int
    begin: int
    nbytes: int
    offset: int
