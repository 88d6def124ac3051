"""Inputs and outputs belong to an image: its graph's first, those of its first run where the graph states none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import ArtifactError, CallerError
from trims.formats.base import Artifact
from trims.image.peek import PARSE_HERE_BYTES
from trims.manifests.serving import NO_SIGNATURE, Signature, TensorType
from trims.store.catalog import Catalog
from trims.store.resolve.signatures import Signatures

if TYPE_CHECKING:
    from pathlib import Path

X, Y = TensorType("x", "FP32", (-1, 3)), TensorType("y", "INT64", (-1,))
GRAPH = Signature((X,), (Y,))


class Tells:
    """A converter whose artifacts say what they take."""

    def __init__(self, said: Signature | ArtifactError = GRAPH) -> None:
        self.said = said
        self.looks = 0

    def signature(self, artifact: Artifact) -> Signature:
        self.looks += 1
        if isinstance(self.said, ArtifactError):
            raise self.said
        return self.said


def look(signatures: Signatures, chosen: Any, key: str, in_place: str | None = None, folder: str = "/") -> Signature:
    from pathlib import Path

    signatures.look(chosen, Artifact("f", (Path(folder, "m"),)), key, in_place)
    return signatures.of(key)


def test_a_graph_is_read_once_for_its_image_and_known_to_the_next_daemon(catalog: Catalog, folder: Path) -> None:
    chosen = Tells()
    assert look(Signatures(catalog), chosen, "k") == look(Signatures(catalog), chosen, "k") == GRAPH
    assert chosen.looks == 1
    catalog.close()
    again = Catalog(folder / "state" / "catalog.db")
    assert look(Signatures(again), chosen, "k") == GRAPH
    assert (chosen.looks, Signatures(again).of("other"), Signatures(again).of("")) == (1, NO_SIGNATURE, NO_SIGNATURE)
    again.close()


@pytest.mark.parametrize(
    "said",
    [
        ArtifactError("broken"),
        Signature((X, X)),
        Signature((TensorType("x", "FP128", ()),)),
        Signature((TensorType("x", "FP32", (-3,)),)),
        Signature((TensorType("x\n", "FP32", ()),)),
    ],
)
def test_a_graph_that_says_nothing_of_use_is_not_read_again(catalog: Catalog, said: Any) -> None:
    chosen = Tells(said)
    for _ in range(2):
        assert look(Signatures(catalog), chosen, "k") == NO_SIGNATURE
    assert chosen.looks == 1


def test_what_is_too_large_to_be_parsed_beside_opens_is_left_to_its_load(catalog: Catalog) -> None:
    class Large(Tells):
        def described_bytes(self, artifact: Artifact) -> int:
            return PARSE_HERE_BYTES + 1

    chosen = Large()
    assert (look(Signatures(catalog), chosen, "k"), chosen.looks) == (NO_SIGNATURE, 0)


def test_a_run_is_kept_where_the_graph_says_nothing(catalog: Catalog) -> None:
    signatures = Signatures(catalog)
    look(signatures, Tells(), "graph")
    look(signatures, object(), "module")
    signatures.learn(["graph"], Signature((Y,), (X,)))
    signatures.learn(["module", "files of module"], Signature((Y,), (X,)))
    signatures.learn(["module"], GRAPH)
    signatures.learn(["other"], Signature((X,)))
    signatures.learn(["other"], Signature((Y,)))
    assert signatures.of("other") == Signature((X,), seen=True)
    signatures.learn(["other"], GRAPH)
    assert signatures.of("other") == Signature((X,), (Y,), seen=True)
    assert signatures.of("graph") == GRAPH
    assert signatures.of("module") == signatures.of("files of module") == Signature((Y,), (X,), seen=True)


def test_what_is_known_of_files_is_known_of_the_image_that_they_turn_out_to_be(catalog: Catalog) -> None:
    signatures = Signatures(catalog)
    signatures.learn(["files"], GRAPH)
    assert look(signatures, object(), "image", "files").inputs == (X,)


def test_a_run_with_what_no_tensor_has_is_refused(catalog: Catalog) -> None:
    with pytest.raises(CallerError, match="that no tensors can have"):
        Signatures(catalog).learn(["k"], Signature((TensorType("x", "FP32", (-1,) * 33),)))
