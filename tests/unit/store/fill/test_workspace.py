"""Workspace: what a manifest states counts, else the most that a reader has needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store_parts import resolved

from trims.store.catalog import Catalog
from trims.store.fill.workspace import Workspaces

if TYPE_CHECKING:
    from pathlib import Path


KEY = "a" * 64


def test_nothing_is_known_of_an_image_that_no_manifest_and_no_reader_spoke_of(catalog: Catalog) -> None:
    workspaces = Workspaces(catalog)
    workspaces.stated(resolved(key=KEY))
    assert workspaces.of(KEY) is None


def test_the_most_that_a_reader_has_needed_counts(catalog: Catalog) -> None:
    workspaces = Workspaces(catalog)
    assert [workspaces.measured(KEY, nbytes, None) for nbytes in (0, 50, 20, 70)] == [0, 50, 50, 70]
    assert workspaces.of(KEY) == 70


def test_what_a_manifest_states_counts_whatever_readers_measure(catalog: Catalog) -> None:
    workspaces, stated = Workspaces(catalog), resolved(key=KEY, workspace_bytes=100)
    workspaces.measured(KEY, 500, None)
    workspaces.stated(stated)
    assert workspaces.of(KEY) == 100
    assert workspaces.measured(KEY, 900, stated) == 100


def test_the_next_daemon_knows_what_this_one_knew(catalog: Catalog, folder: Path) -> None:
    workspaces = Workspaces(catalog)
    workspaces.measured(KEY, 70, None)
    workspaces.stated(resolved(key="b" * 64, workspace_bytes=0))
    catalog.close()
    again = Catalog(folder / "state" / "catalog.db")
    following = Workspaces(again)
    assert (following.of(KEY), following.of("b" * 64), following.of("c" * 64)) == (70, 0, None)
    again.close()
