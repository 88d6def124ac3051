"""Rows of versions: what is known of one moves with its row, also when the daemon was killed before it could."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from registries import manifest

from trims.core.errors import DeadlineError
from trims.registry.versions import PLAIN, Alias, Versions
from trims.store.rows import moved_rows, restore_rows

if TYPE_CHECKING:
    from trims.registry.sqlite import SqliteRegistry
    from trims.store.catalog import Catalog

ONE = Versions("m", ("1",), {PLAIN: Alias("1")})
TWO = ONE.added("2")


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (None, ONE, {}),
        (ONE, None, {}),
        (ONE, ONE, {}),
        (ONE, TWO, {"m": "m@1"}),
        (TWO, ONE, {"m@1": "m"}),
        (TWO, TWO.added("3"), {}),
        (ONE, ONE.exchanged("1", "2"), {}),
        (TWO, TWO.exchanged("1", "3"), {"m@1": "m@3"}),
        (TWO, TWO.switched(PLAIN, "2"), {}),
    ],
)
def test_a_row_moves_when_a_model_comes_to_have_several_versions_or_one(
    before: Versions | None, after: Versions | None, moved: dict[str, str]
) -> None:
    assert moved_rows(before, after) == moved


def test_a_daemon_moves_what_the_last_one_left(registry: SqliteRegistry, catalog: Catalog) -> None:
    for version in ("1", "2"):
        registry.put(manifest(version=version), "")
    registry.put(manifest("n", version="1"), "")
    catalog.remember_key("m", "k1", json.dumps({"version": "1"}))
    catalog.remember_key("n@1", "k2", json.dumps({"version": "1"}))
    catalog.remember_key("gone@1", "k3", json.dumps({"version": "1"}))
    catalog.remember_key("file:/a@b", "k4", "{}")
    catalog.pin("m", "cpu", pinned=True)
    catalog.remember_format("m", "npz", "text")
    restore_rows(registry, catalog)
    assert {name: catalog.key_of(name) for name in ("m", "m@1", "n", "n@1", "gone@1", "file:/a@b")} == {
        "m": None, "m@1": "k1", "n": "k2", "n@1": None, "gone@1": "k3", "file:/a@b": "k4",
    }  # fmt: skip
    assert catalog.pins() == [("m@1", "cpu")]
    assert catalog.format_under("m@1", "text") == "npz"


def test_a_registry_that_is_away_keeps_no_daemon_from_starting(
    registry: SqliteRegistry, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> list[str]:
        raise DeadlineError("the registry did not answer")

    monkeypatch.setattr(registry, "rows", away)
    restore_rows(registry, catalog)
    assert "may be found out again: the registry did not answer" in caplog.text
