"""The tiers of the host that the settings name: ours by name, a plug-in's guarded, and what is no such tier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from own_parts import declare

from trims.core.errors import ConfigError
from trims.core.place import CPU, DISK
from trims.plugins import Choice
from trims.testing.tiers import an_image, put
from trims.tiers.base import TierSettings
from trims.tiers.disk import DiskTier
from trims.tiers.file import FileTier
from trims.tiers.guarded import GuardedTier
from trims.tiers.opening import GROUP, open_tier

if TYPE_CHECKING:
    from pathlib import Path

    from trims.core.place import Place
    from trims.tiers.base import Tier


def opened(text: str, folder: Path, place: Place = DISK) -> Tier:
    choice = Choice.parse(text)
    given = TierSettings(place, 1 << 20, folder / "state", "trims-test", choice.argument)
    return open_tier(choice, given, {"folder": lambda given: DiskTier(folder, given.capacity_bytes)})


def test_ours_is_opened_by_its_name_and_not_guarded(tmp_path: Path) -> None:
    assert type(opened("folder", tmp_path)) is DiskTier


def test_a_tier_of_a_plugin_is_given_what_it_needs_and_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, GROUP, disk="disk")
    tier = opened(f"disk:{tmp_path}/far", tmp_path)
    assert isinstance(tier, GuardedTier)
    assert (tier.place, tier.capacity_bytes, tier.hash_on_adoption) == (DISK, 1 << 20, False)
    extent = put(tier, an_image())
    assert extent.label.startswith(f"{tmp_path}/far/trims-test/")
    tier.close()


def test_an_unknown_tier_is_told_with_those_of_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, GROUP, several="disk")
    with pytest.raises(ConfigError, match=r"there is no disk tier 'shared'; known are folder, several "):
        opened("shared", tmp_path)


def test_a_plugin_may_not_have_the_name_of_our_tier_at_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, GROUP, shared="disk")
    with pytest.raises(ConfigError, match=r"'shared' \(own_parts:disk\) has the name of a disk tier of trims"):
        opened("shared", tmp_path)


@pytest.mark.parametrize(
    ("function", "place", "said"),
    [
        ("disk", CPU, "returned a tier at disk, where one at cpu was asked for"),
        ("memory_tier", DISK, "returned a tier at cpu, where one at disk was asked for"),
        ("larger", DISK, "returned a tier of 1048577 bytes, where at most 1048576 were asked for"),
        ("Half", DISK, "returned no Tier: Half has no place, capacity_bytes, hash_on_adoption, skipped, create,"),
        ("fails", DISK, "cannot be opened: ValueError: the shelf is empty"),
    ],
)
def test_what_is_not_the_tier_that_was_asked_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, place: Place, said: str
) -> None:
    declare(monkeypatch, GROUP, odd=function)
    with pytest.raises(ConfigError) as caught:
        opened(f"odd:{tmp_path}", tmp_path, place)
    assert str(caught.value).startswith(f"the trims.tiers plug-in 'odd' (own_parts:{function}) {said}")


def test_a_tier_of_files_in_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("own_parts.disk", lambda _: FileTier())
    declare(monkeypatch, GROUP, odd="disk")
    with pytest.raises(ConfigError, match="returned a tier of a device or of files in place, which no setting opens"):
        opened("odd", tmp_path)
