"""`mxnet.nd.load` of dense arrays: NDArrays over shared memory, copy-on-write.

Each function of MXNet that loads parameters ends in `mxnet.nd.load`: `load_checkpoint`, `Module.load`, gluon's
`load_parameters` and `SymbolBlock.imports`. Gluon and `Module` copy what they load: see `mxnet_copies`.
"""

from __future__ import annotations

import functools
import os
import sys

from trims_client.transparent.file_bytes import bytes_of
from trims_client.transparent.mxnet_file import contents
from trims_client.transparent.outcomes import StepAsideError, is_proven, note_aside, note_shared
from trims_client.transparent.replaced import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_LOADER = "mxnet.nd.load"
#: Releases of MXNet that the adapter was proven with.
_PROVEN = ("1.9.1",)
#: Modules that have the original under a name of theirs.
_PLACES = (
    ("mxnet.ndarray", "load"),
    ("mxnet.ndarray.utils", "load"),
    ("mxnet.initializer", "load"),
    ("mxnet.contrib.quantization", "nd_load"),
)
#: Names that MXNet takes for its standard streams.
_STREAMS = ("stdin", "stdout")


def adapt(mxnet: ModuleType) -> Callable[[], None]:
    """Put the adapter in the place of `mxnet.nd.load`. Return what puts the original back."""
    if not is_proven(_LOADER, mxnet, _PROVEN):
        return lambda: None
    original = mxnet.ndarray.utils.load
    if original.__globals__ is not vars(mxnet.ndarray.utils):
        note_aside(_LOADER, "another library has patched it")
        return lambda: None
    from trims_client.transparent import mxnet_copies

    @functools.wraps(original)
    def load(fname: Any) -> Any:
        try:
            if not _is_plain_path(fname):
                raise StepAsideError("not a path")
            if mxnet.is_np_shape():
                raise StepAsideError("numpy's shapes")
            found = bytes_of(fname)
            arrays, names = contents(found.data)
        except StepAsideError as error:
            aside = error
        else:
            made = mxnet_copies.Load(found, arrays, names).arrays()
            note_shared(_LOADER, found.data.nbytes)
            return dict(zip(names, made, strict=True)) if names else made
        # Outside of the block: an error of the original has no context of ours.
        return aside.load(_LOADER, lambda: original(fname))

    places = [(sys.modules[module], name) for module, name in _PLACES if module in sys.modules]
    undo_load, undo_copies = replace(places, original, load), mxnet_copies.adapt()
    return lambda: (undo_load(), undo_copies())[0]


def _is_plain_path(fname: Any) -> bool:
    """Return whether MXNet opens the file that Python has by this name."""
    if not isinstance(fname, str) or "://" in fname or fname in _STREAMS:
        return False
    try:
        return fname.encode() == os.fsencode(fname)
    except UnicodeEncodeError:
        return False
