"""Labels of outputs, for classifications: read from the files that manifests name, and kept while these stay."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from typing import TYPE_CHECKING

from trims_predictors.transforms.files import locate
from trims_predictors.transforms.ranking import read_labels

if TYPE_CHECKING:
    from trims_predictors.deployment.deployment import Deployment

#: Files whose labels are kept.
_MOST_FILES = 32


class Labels:
    """Labels of all models."""

    def __init__(self) -> None:
        #: Path -> what the file was when it was read (time, length), and its lines.
        self._read: OrderedDict[str, tuple[tuple[int, int], list[bytes]]] = OrderedDict()

    async def of(self, deployment: Deployment, output: str) -> list[bytes]:
        """The labels of an output's elements; empty if the manifest names none.

        Raises NotSupportedError if the file is not there or is no text.
        """
        stated = next((each.labels for each in deployment.outputs if each.name == output), "")
        return await asyncio.to_thread(self._of, stated, deployment.origin) if stated else []

    def _of(self, stated: str, origin: str) -> list[bytes]:
        path = locate({"path": stated}, origin)
        found = os.stat(path)
        identity = (found.st_mtime_ns, found.st_size)
        known = self._read.get(path)
        if known is None or known[0] != identity:
            known = self._read[path] = (identity, list(read_labels(path)))
            while len(self._read) > _MOST_FILES:
                self._read.popitem(last=False)
        return known[1]
