"""Checksum of an image (`trims.memory.row_sums`): in the header of its index, by which any place can be verified.

It is that of all the image's bytes, with zeros in the place of the checksum itself. One of 0, for which that place
stands empty, counts as none: images of older versions have none, nor have artifacts that are served in place. Not
covered: who compares it, and when.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from trims.image.index import CHECKSUM
from trims.image.reader import ImageView
from trims.memory.row_sums import change, part, whole

if TYPE_CHECKING:
    from collections.abc import Callable

#: Bytes of a large image that one thread takes at once, and most threads.
_PIECE_BYTES, _MOST_THREADS = 8 << 20, 8


def stamp(image: memoryview, on_piece: Callable[[], None] | None = None) -> int:
    """Compute the checksum of a complete image that has none yet, and write it there; return it.

    Args:
        on_piece: Called in this thread, every few MiB; an exception from it ends the computation.
    """
    place = place_of(ImageView(image))
    image[place] = bytes(8)
    begins = range(0, len(image), _PIECE_BYTES)
    threads = min(len(begins), _MOST_THREADS, len(os.sched_getaffinity(0)))
    parts = 0
    with ThreadPoolExecutor(threads, thread_name_prefix="trims-checksum") as pool:
        try:
            for found in pool.map(lambda begin: part(image[begin : begin + _PIECE_BYTES], begin), begins):
                parts += found
                if on_piece is not None:
                    on_piece()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    found = whole(parts, len(image))
    image[place] = found.to_bytes(8, "little")
    return found


def stated(image: ImageView) -> int | None:
    """Return the checksum that an image, or its head, states; None if it has none."""
    return image.index_header.checksum or None


def stated_sum(image: ImageView) -> int | None:
    """Return the sum of all parts that an image must have, as they lie, by what it or its head states; None if nothing.

    This is what a sum of its parts is compared with.
    """
    checksum = stated(image)
    if checksum is None:
        return None
    own = change(bytes(8), checksum.to_bytes(8, "little"), place_of(image).start)
    return (checksum - whole(0, image.nbytes) + own) % (1 << 64)


def place_of(image: ImageView) -> slice:
    """Return where in an image its checksum lies."""
    return slice(image.data_start + CHECKSUM.start, image.data_start + CHECKSUM.stop)
