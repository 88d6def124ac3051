"""Names that have the artifact of another model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ManifestError, ModelNotFoundError
from trims.formats.base import Limits
from trims.formats.conversion.interpreter_selection import InterpreterSelection
from trims.store.resolve.references import References
from trims.store.resolve.resolver import Resolver

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.registry.sqlite import SqliteRegistry
    from trims.store.catalog import Catalog


@pytest.fixture
def references(registry: SqliteRegistry, checkpoint: Callable[..., Path]) -> References:
    """References by a clock that a test sets; `f` refers to `m`, `g` to `f`, and `lost` to nothing."""
    registry.put({"name": "m", "artifact": {"path": str(checkpoint("m"))}}, "")
    for name, model in (("f", "m"), ("g", "f"), ("lost", "gone")):
        registry.put({"name": name, "artifact": {"model": model}}, "")
    now = [0.0]
    made = References(registry, lambda: now[0], 0.5)
    made.now = now  # type: ignore[attr-defined]
    return made


def test_a_reference_is_followed_once_and_leads_to_a_model_of_its_own(references: References) -> None:
    assert [references.target(name) for name in ("m", "f")] == ["m", "m"]
    with pytest.raises(ManifestError, match=r"g: artifact: 'f' has no artifact of its own, but that of 'm'"):
        references.target("g")
    with pytest.raises(ModelNotFoundError, match="'lost' has the artifact of 'gone', which is not registered"):
        references.target("lost")
    with pytest.raises(ModelNotFoundError, match="no model 'unknown'"):
        references.target("unknown")


def test_a_reference_is_remembered_and_fresh_for_half_a_second(references: References) -> None:
    assert (references.of("f"), references.fresh("f")) == ("f", "f")
    references.remember("f", "m")
    assert (references.of("f"), references.fresh("f")) == ("m", "m")
    references.now[0] = 0.5  # type: ignore[attr-defined]
    assert (references.of("f"), references.fresh("f")) == ("m", "f")
    references.forget("f")
    assert references.of("f") == "f"


def test_a_reference_is_answered_with_the_image_of_its_model(
    folder: Path, registry: SqliteRegistry, catalog: Catalog, checkpoint: Callable[..., Path]
) -> None:
    registry.put({"name": "m", "artifact": {"path": str(checkpoint("m"))}}, "")
    registry.put({"name": "f", "artifact": {"model": "m"}}, "")
    resolver = Resolver(registry, catalog, InterpreterSelection(), folder / "artifacts", Limits(time_s=60.0))
    found = resolver.resolve("f")
    assert (found.name, found.key) == ("m", resolver.resolve("m").key)
    assert catalog.names_of(found.key) == ["m"]
    assert (resolver.references.of("f"), resolver.target("f"), resolver.format_known("f", registry.get("f"))) == (
        "m", "m", "safetensors",
    )  # fmt: skip
    registry.put({"name": "m", "artifact": {"path": str(checkpoint("n"))}}, "", replace=True)
    resolver.forget("m")
    assert resolver.resolve("f").key != found.key, "it follows"


def test_a_manifest_that_refers_to_nothing_is_refused_before_it_is_kept(
    folder: Path, registry: SqliteRegistry, catalog: Catalog
) -> None:
    resolver = Resolver(registry, catalog, InterpreterSelection(), folder / "artifacts", Limits(time_s=60.0))
    with pytest.raises(ModelNotFoundError):
        resolver.check_reference({"name": "f", "artifact": {"model": "gone"}}, "")
    resolver.check_reference({"name": "f", "artifact": {"path": "/x"}}, "")
    resolver.check_reference({"name": "f", "artifact": None}, "")
