"""ResidencyOptions: what an open that says only a name asks of residency."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec import structs
from store_parts import resolved

from trims.core.residency.events import KeepAlive
from trims.store.residency_options import ResidencyOptions, is_kept

if TYPE_CHECKING:
    from trims.store.resolve.resolved import Resolved


def _with(converted: bool = False, **residency: object) -> Resolved:
    plain = resolved()
    manifest = structs.replace(plain.manifest, residency=structs.replace(plain.manifest.residency, **residency))
    return replace(plain, manifest=manifest, converted=converted)


@pytest.mark.parametrize(("stated", "daemon", "counts"), [(None, 60.0, 60.0), (5.0, 60.0, 5.0), (0.0, None, 0.0)])
def test_the_manifest_s_keep_alive_counts_before_the_daemon_s(
    stated: float | None, daemon: float | None, counts: float
) -> None:
    assert ResidencyOptions.of(_with(keep_alive_s=stated), daemon).keep == KeepAlive(counts)


@pytest.mark.parametrize(
    ("persist", "converted", "kept"),
    [("auto", False, False), ("auto", True, True), ("always", False, True), ("never", True, False)],
)
def test_an_image_is_kept_on_disk_if_stated_or_if_a_converter_made_it(
    persist: str, converted: bool, kept: bool
) -> None:
    model = _with(converted, persist=persist)
    assert is_kept(model) is ResidencyOptions.of(model, None).kept is kept


def test_terms_name_the_look_they_follow_from() -> None:
    model = _with()
    assert ResidencyOptions.of(model, None).resolved is model
