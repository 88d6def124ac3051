"""Pins: they belong to names, are kept between lives, and move with what a name stands for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from store_parts import resolved

from trims.core.errors import NotSupportedError
from trims.core.place import CPU, DISK, FILE, GPU, Place
from trims.store.pins import Pins

if TYPE_CHECKING:
    from trims.store.catalog import Catalog

A, B = "a" * 64, "b" * 64


class Bench:
    """Pins over a real catalog; notes which images are pinned where now."""

    def __init__(self, catalog: Catalog, *places: Place) -> None:
        self.catalog = catalog
        self.epochs: dict[str, int] = {}
        self.pinned: dict[tuple[str, Place], bool] = {}
        resolver: Any = SimpleNamespace(epoch=lambda name: self.epochs.get(name, 0))
        self.pins = Pins(catalog, resolver, places or (CPU, DISK), self._changed)

    def _changed(self, key: str, place: Place, pinned: bool) -> None:
        self.pinned[key, place] = pinned

    def now(self) -> set[tuple[str, Place]]:
        return {where for where, pinned in self.pinned.items() if pinned}

    def named(self, name: str, key: str) -> None:
        """Let the name stand for this image from now on, as the resolver notifies the catalog."""
        self.catalog.remember_key(name, key, "{}")

    def open_unread(self, name: str, in_place: str) -> None:
        """State a name whose files were replaced, and are served in place unread: the catalog has its last image."""
        self.pins.stated(resolved(name, in_place), 0)

    def open(self, name: str, key: str, epoch: int = 0, **residency: Any) -> None:
        self.named(name, key)
        self.pins.stated(resolved(name, key, **residency), epoch)


@pytest.fixture
def bench(catalog: Catalog) -> Bench:
    return Bench(catalog)


def test_a_pin_is_an_images_for_as_long_as_one_of_its_names_is_pinned(bench: Bench) -> None:
    for name in ("one", "two"):
        bench.named(name, A)
        bench.pins.set(name, A, CPU, pinned=True)
    bench.pins.set("one", A, CPU, pinned=False)
    assert bench.now() == {(A, CPU)}
    bench.pins.set("two", A, CPU, pinned=False)
    assert bench.now() == set()


def test_a_pin_at_a_place_without_a_tier_is_refused_and_not_kept(bench: Bench) -> None:
    with pytest.raises(NotSupportedError, match="no tier gpu:0; it has cpu, disk"):
        bench.pins.set("m", A, GPU, pinned=True)
    assert bench.catalog.pins() == []


def test_a_pin_at_the_artifacts_own_files_is_refused_with_the_places_that_pin(catalog: Catalog) -> None:
    bench = Bench(catalog, CPU, DISK, FILE)
    with pytest.raises(NotSupportedError, match=r"nothing can be pinned at file: .*; pin at cpu, disk$"):
        bench.pins.set("m", A, FILE, pinned=True)
    assert bench.catalog.pins() == []


def test_the_next_daemon_pins_what_the_last_one_pinned(bench: Bench) -> None:
    bench.named("m", A)
    bench.pins.set("m", A, CPU, pinned=True)
    bench.catalog.pin("never loaded", "cpu", pinned=True)
    following = Bench(bench.catalog)
    following.pins.restore()
    assert following.now() == {(A, CPU)}


@pytest.mark.parametrize("place", ["gpu:0", "moon"])
def test_a_pin_at_a_place_that_is_away_is_kept_for_when_it_is_back(
    bench: Bench, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.named("m", A)
    bench.catalog.pin("m", place, pinned=True)
    bench.pins.restore()
    assert bench.now() == set()
    assert f"m is pinned at {place}, which this daemon does not have" in caplog.text
    assert bench.catalog.pins() == [("m", place)]


def test_a_manifest_pins_at_its_own_place_until_an_operator_unpins_there(bench: Bench) -> None:
    bench.open("m", A, pin=True, place="cpu")
    assert bench.now() == {(A, CPU)}
    bench.pins.set("m", A, CPU, pinned=False)
    bench.open("m", A, pin=True, place="cpu")
    assert bench.now() == set()


def test_a_manifest_that_pins_at_a_missing_place_pins_nothing(bench: Bench) -> None:
    bench.open("m", A, pin=True, place="gpu")
    assert (bench.now(), bench.catalog.pins()) == (set(), [])


def test_a_pin_moves_along_when_the_name_comes_to_stand_for_another_image(bench: Bench) -> None:
    bench.open("m", A)
    bench.pins.set("m", A, DISK, pinned=True)
    bench.open("m", B)
    assert bench.now() == {(B, DISK)}


def test_a_replaced_image_is_pinned_no_longer_before_the_new_one_is_read(bench: Bench) -> None:
    bench.open("m", A)
    bench.pins.set("m", A, CPU, pinned=True)
    bench.open_unread("m", "unread")
    assert bench.now() == set()
    assert bench.pins.is_pinned("m")
    bench.open("m", B)
    assert bench.now() == {(B, CPU)}


def test_a_pin_at_another_place_moves_along_when_the_new_image_is_pinned_at_one(bench: Bench) -> None:
    bench.open("m", A)
    bench.pins.set("m", A, DISK, pinned=True)
    bench.named("m", B)
    bench.pins.set("m", B, CPU, pinned=True)
    assert bench.now() == {(B, DISK), (B, CPU)}


def test_a_name_that_is_forgotten_before_its_new_file_is_read_leaves_no_pin(bench: Bench) -> None:
    bench.open("m", A)
    bench.pins.set("m", A, CPU, pinned=True)
    bench.open_unread("m", "unread")
    bench.pins.forget("m")
    assert (bench.now(), bench.catalog.pins()) == (set(), [])


def test_an_image_that_another_pinned_name_stands_for_stays_pinned_when_one_moves(bench: Bench) -> None:
    for name in ("one", "two"):
        bench.open(name, A)
        bench.pins.set(name, A, CPU, pinned=True)
    bench.open("one", B)
    assert bench.now() == {(A, CPU), (B, CPU)}


def test_a_look_of_an_earlier_epoch_pins_nothing(bench: Bench) -> None:
    bench.epochs["m"] = 2
    bench.open("m", A, 1, pin=True, place="cpu")
    assert bench.now() == set()
    bench.open("m", A, 2, pin=True, place="cpu")
    assert bench.now() == {(A, CPU)}


def test_a_name_that_is_forgotten_leaves_no_pin_of_its_own(bench: Bench) -> None:
    bench.open("m", A)
    for place in (CPU, DISK):
        bench.pins.set("m", A, place, pinned=True)
    bench.pins.forget("m")
    assert (bench.now(), bench.catalog.pins()) == (set(), [])
    following = Bench(bench.catalog)
    following.pins.restore()
    assert following.pinned == {}


def test_a_pin_moves_with_the_row_of_its_version(bench: Bench) -> None:
    bench.named("one", A)
    bench.pins.set("one", A, CPU, pinned=True)
    bench.pins.rename("one", "one@1")
    assert bench.pins.is_pinned("one@1")
    assert not bench.pins.is_pinned("one")
    bench.open("one@1", B)
    assert bench.now() == {(B, CPU)}, "it follows what its name stands for"
