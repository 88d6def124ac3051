"""Weights as ONNX Runtime packs them for its kernels, kept in the image beside the weights themselves.

Kernels of matrix products read weights in an order of their own. A session makes that order again in private memory,
which takes most of its start; without it, products with few rows run at about half the speed. ONNX Runtime can save
what it packed as external data, and map it again. So the image has one more tensor, `BLOCK`, with all packed bytes, and
the program says where in the image each weight and its packed form lie.

The program serves both ways. As it is, its weights are declared in a file `null`, and are fed by the session. With the
file's name exchanged for that of the image, which has as many letters, ONNX Runtime maps everything by itself.

Seen in ONNX Runtime 1.22 to 1.31: an external initializer has entries `prepacked_N` of the form
`KEY|OFFSET;BYTES;PADDING|...`, and the key is made from the bytes packed, so a wrong block is never used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trims.core.errors import ConversionError
from trims.core.units import align_up
from trims.formats.onnx.graph import DTYPES, FED_LOCATION
from trims.image.external import pad_name
from trims.image.plan import SourceTensor, plan_image

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims.image.plan import ImagePlan
    from trims.image.program import Program

#: Name of the tensor that holds the packed bytes.
BLOCK = "onnxruntime.prepacked"
#: Letters of each name of a file in the program: room for the name of any image.
NAME_LETTERS = 224
#: Digits of each offset: fixed, so that offsets can be written when the layout, which depends on their length, is
#: known.
_DIGITS = 20
_ALIGNMENT_BYTES = 64
_PREFIX = "prepacked_"


@dataclass(slots=True)
class _Piece:
    """A packed form of one weight.

    Attributes:
        key: ONNX Runtime's name of it.
        parts: Offset in the file that ONNX Runtime saved, offset in the block, bytes, and padding, of each part.
    """

    key: str
    parts: list[tuple[int, int, int, str]]


@dataclass(slots=True)
class PackedWeights:
    """Packed weights of one model."""

    pieces: dict[str, list[_Piece]] = field(default_factory=dict)
    nbytes: int = 0

    @classmethod
    def read(cls, model: Any) -> PackedWeights:
        """Read the packed weights from the initializers of a model saved with them. Raises ConversionError."""
        found = cls()
        for tensor in model.graph.initializer:
            for entry in tensor.external_data if tensor.data_type in DTYPES else ():
                if entry.key.startswith(_PREFIX):
                    found._add(tensor.name, entry.value)
        return found

    def _add(self, name: str, text: str) -> None:
        key, *parts = text.split("|")
        piece = _Piece(key, [])
        for part in parts:
            try:
                offset, nbytes, padding = part.split(";")
                piece.parts.append((int(offset), self.nbytes, int(nbytes), padding))
            except ValueError:
                raise ConversionError(
                    f"weight {name!r}: this ONNX Runtime describes packed weights as {text!r:.80}, which trims does "
                    "not know; convert the model with another version, or without the option prepack"
                ) from None
            self.nbytes = align_up(self.nbytes + int(nbytes), _ALIGNMENT_BYTES)
        self.pieces.setdefault(name, []).append(piece)

    def source(self, saved: memoryview) -> SourceTensor:
        """Return the block as a tensor of the image, filled from the file that ONNX Runtime saved."""

        def fill(target: memoryview) -> None:
            for pieces in self.pieces.values():
                for offset, into, nbytes, _ in (part for piece in pieces for part in piece.parts):
                    target[into : into + nbytes] = saved[offset : offset + nbytes]

        ends = [part[0] + part[2] for pieces in self.pieces.values() for piece in pieces for part in piece.parts]
        if max(ends) > len(saved):
            raise ConversionError("packed weights were not written in full: there is no room for temporary files")
        return SourceTensor(BLOCK, "U8", (self.nbytes,), fill)

    def plan(
        self, model: Any, program: Program, sources: Sequence[SourceTensor], metadata: Mapping[str, str]
    ) -> ImagePlan:
        """Lay out the image, and write into its program where everything lies.

        Args:
            model: The graph without its weights, whose initializers in `sources` are declared as fed.
            sources: The tensors, the block among them.
        """
        names = {source.name for source in sources}
        declared = [tensor for tensor in model.graph.initializer if tensor.name in names]
        attributes = {**program.attributes, "packed": {"block": BLOCK, "name": pad_name(FED_LOCATION, NAME_LETTERS)}}
        plan = None
        for _ in range(2):  # the first one to learn the layout: texts of the same length are written for both
            for tensor in declared:
                self._declare(tensor, plan)
            body = model.SerializeToString(deterministic=True)
            before = plan
            filled = program._replace(attributes=attributes, body=body)
            plan = plan_image(sources, program=filled, metadata=metadata)
        assert before is not None
        assert plan is not None
        assert (plan.layout, len(plan.head), plan.nbytes) == (before.layout, len(before.head), before.nbytes)
        return plan

    def _declare(self, tensor: Any, plan: ImagePlan | None) -> None:
        """Say where in the image a weight and its packed forms lie."""

        def within(name: str, more: int) -> int:
            return 0 if plan is None else len(plan.head) + plan.layout.tensors[name].offset + more

        given = {pair.key: pair.value for pair in tensor.external_data}
        given["location"] = pad_name(FED_LOCATION, NAME_LETTERS)
        given["offset"] = f"{within(tensor.name, 0):0{_DIGITS}d}"
        for number, piece in enumerate(self.pieces.get(tensor.name, ())):
            parts = [
                f"{within(BLOCK, into):0{_DIGITS}d};{nbytes};{padding}" for _, into, nbytes, padding in piece.parts
            ]
            given[f"{_PREFIX}{number}"] = "|".join([piece.key, *parts])
        del tensor.external_data[:]
        for key, value in given.items():
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
