"""An image as a copier's task: where all of it lies in files, it can be put together by another process.

Not covered: images of which a part must be produced by code (`ImagePlan.fills`), such as transposed tensors.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.background.task import Order, Part, Task
from trims.core.errors import ArtifactError
from trims.image.index import CHECKSUM
from trims.image.source import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trims.background.task import SourceFailedError
    from trims.image.plan import ImagePlan
    from trims.image.source import SourceFile


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """A task and what it reads.

    Attributes:
        order: Order for a copier. The first of its files has the image's own parts: header, index, program.
        files: The artifact's files, which the others are.
    """

    order: Order
    files: Sequence[SourceFile]

    def explain(self, error: SourceFailedError) -> ArtifactError:
        """Return the error for a file that failed, by its path."""
        path = self.files[error.file - 1].path
        if error.errno is None:
            return ArtifactError(f"{path} ended at {error.at} while it was read: truncated meanwhile?")
        return ArtifactError(f"{path} cannot be read at {error.at} bytes: {os.strerror(error.errno)}")

    def check(self) -> None:
        """Raise ArtifactError if a file is not what it was when the image was planned."""
        for file, fd in zip(self.files, self.order.files[1:], strict=True):
            file.check(fd)


def stamp(plan: ImagePlan, target: int, checksum: str) -> None:
    """Write the checksum that a copier found, in hex, into the image that it made. Raises OSError."""
    os.pwrite(target, int(checksum, 16).to_bytes(8, "little"), len(plan.head) + CHECKSUM.start)


def is_carriable(plan: ImagePlan) -> bool:
    """Return whether all of the image lies in files."""
    return not plan.fills


@contextlib.contextmanager
def as_order(plan: ImagePlan, target: int, *, large_pages: bool) -> Iterator[CopyPlan]:
    """Yield the task that makes the image in a zeroed target of its length. Its files are open for the block.

    The task has the checksum found, which `stamp` writes into the target: only then does the target have its digest.

    Raises ArtifactError for a file that cannot be opened, CapacityError where no file can.
    """
    start = len(plan.head)
    own = [(0, plan.head + plan.index), (start + plan.program_offset, plan.program)]
    files = sorted({span.file for _, span in plan.spans} | set(plan.files), key=lambda file: file.path)
    numbers = {file: number for number, file in enumerate(files, 1)}
    parts = [Part(start + spec.offset, spec.nbytes, numbers[span.file], span.offset) for spec, span in plan.spans]
    with contextlib.ExitStack() as stack:
        own_fd = os.memfd_create("head", os.MFD_CLOEXEC)
        stack.callback(os.close, own_fd)
        with open(own_fd, "wb", closefd=False) as head:
            for begin, data in own:
                parts.append(Part(begin, len(data), 0, head.tell()))
                head.write(data)
        fds = [own_fd, *(stack.enter_context(open_source(file.path)) for file in files)]
        parts.sort(key=lambda part: (part.begin, part.nbytes))
        task = Task(plan.nbytes, parts, ("checksum",), large_pages=large_pages)
        yield CopyPlan(Order(task, fds, target), files)
