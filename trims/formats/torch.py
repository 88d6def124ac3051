"""PyTorch checkpoints: what `torch.save` wrote, zip or legacy, as a state dict or wrapped in a training checkpoint.

Converted by `torch.load` with `weights_only=True`, in a child. Tensors that share storage, place and shape stay tied.
Values that are no tensors are left out and named in the image's metadata under `ignored`. Quantized, sparse and
subclassed tensors are refused: their bytes alone do not make them again. A zip file whose tensors are dense is served
in place as well, without torch (`trims.formats.torch_zip`).

Options:
    allow_pickle: unpickle anything, which runs the file's code; a whole `nn.Module` then becomes a skeleton too.
    module: "package.module:function", called with `module_args` (a map), returns the `nn.Module` that the weights
        belong to; the image then carries it as a skeleton (`trims.formats.skeleton`).
    ignore: glob patterns of tensors that need not belong to the module.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from trims.core.errors import ArtifactError
from trims.formats.base import check_options
from trims.formats.torch_state import builder_of, metadata_of, state_dict
from trims.formats.torch_tensors import describe
from trims.formats.torch_zip import is_stored, read_checkpoint
from trims.image.descriptors import explain_descriptors, lacks_descriptors
from trims.image.plan import ImagePlan, plan_image
from trims.image.source import SourceFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from trims.formats.base import Artifact
    from trims.image.plan import Contents
    from trims.image.program import Program

_OPTIONS = ("module", "module_args", "ignore")
_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")
_ZIP_MAGIC = b"PK\x03\x04"
#: How `torch.save`'s legacy format begins: its magic number, pickled with protocol 2.
_LEGACY_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


class TorchConverter:
    """See the module."""

    format: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    host_specific: ClassVar[bool] = False

    def needs_child(self, options: Mapping[str, Any]) -> bool:
        """Always: it imports torch."""
        del options
        return True

    def frameworks(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """A skeleton belongs to the versions that made it; plain tensors do not change with torch."""
        return ("torch", "transformers") if "module" in options or options.get("allow_pickle") else ()

    def claims(self, main: Path, first_bytes: bytes) -> bool:
        """By the legacy magic number, or a zip file whose first name is torch's, or whose suffix is."""
        if first_bytes.startswith(_LEGACY_MAGIC):
            return True
        names_torch = b"/data.pkl" in first_bytes[:512] or b"/.format_version" in first_bytes[:512]
        return first_bytes.startswith(_ZIP_MAGIC) and (names_torch or main.suffix in _SUFFIXES)

    def files(self, main: Path, options: Mapping[str, Any]) -> tuple[Path, ...]:
        """The one file."""
        check_options(main, options, _OPTIONS)
        return (SourceFile.look(main).path,)

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Load the checkpoint, memory-mapped where its format allows."""
        main, options = artifact.files[0], artifact.options
        check_options(main, options, _OPTIONS)
        file = SourceFile.look(main)
        loaded = _load(main, allow_pickle=bool(options.get("allow_pickle", False)))
        module = _as_module(loaded)
        tensors, ignored = state_dict(loaded if module is None else module.state_dict(), main, _is_tensor)
        sources = describe(tensors, main)
        program: Program | None = None
        if "module" in options or module is not None:
            from trims.formats.skeleton import add_skeleton

            sources, program = add_skeleton(sources, main, options, module, artifact.origin)
        return plan_image(sources, program=program, metadata=metadata_of(ignored), files=(file,))

    def may_be_in_place(self, options: Mapping[str, Any]) -> bool:
        """Always: a session can build the module that has no skeleton yet."""
        del options
        return True

    def contents(self, artifact: Artifact) -> Contents:
        """What the zip file's directory and its pickle say, read without torch."""
        check_options(artifact.files[0], artifact.options, _OPTIONS)
        return replace(read_checkpoint(artifact.files[0]), program=builder_of(artifact))


#: What torch writes its messages in colours with.
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def _load(path: Path, *, allow_pickle: bool) -> Any:
    import torch

    with path.open("rb") as file:
        is_zip = file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
    try:
        # A mapping gives the bytes as they lie there: torch inflates nothing in it, and looks at no member's head.
        return torch.load(path, map_location="cpu", weights_only=not allow_pickle, mmap=is_zip and is_stored(path))
    except pickle.UnpicklingError as error:
        reason = _TERMINAL_CODES.sub("", str(error)).partition("\n")[0]
        remedy = (
            ""
            if allow_pickle
            else "; save module.state_dict() instead of a whole module, or, if you trust its author, "
            "let its code run with allow_pickle: true"
        )
        raise ArtifactError(f"{path}: not a checkpoint of tensors only: {reason}{remedy}") from error
    except MemoryError:
        raise
    except (RuntimeError, EOFError, KeyError, ValueError, AttributeError, IndexError, TypeError, OSError) as error:
        if isinstance(error, OSError) and lacks_descriptors(error):
            raise explain_descriptors(error) from error
        told = _TERMINAL_CODES.sub("", f"{path}: torch cannot read it: {type(error).__name__}: {error}")
        raise ArtifactError(told[:2000]) from error


def _as_module(loaded: Any) -> torch.nn.Module | None:
    import torch

    return loaded if isinstance(loaded, torch.nn.Module) else None


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
