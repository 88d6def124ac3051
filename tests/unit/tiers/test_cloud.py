"""The cloud tier: what it knows, what it forgets, and what it refuses."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from trims.core.errors import CapacityError, NotSupportedError
from trims.core.place import CLOUD
from trims.tiers.base import RemoteTier, Tier
from trims.tiers.cloud import CloudImage, CloudTier

IMAGE = CloudImage("k", "d" * 64, 1000, "s3://b/k.safetensors", {"crc64nvme": "0" * 16}, 2.0)


class Fetching:
    """A fetcher that keeps what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def __call__(self, *asked: Any) -> None:
        self.asked.append(asked)


@pytest.fixture
def fetching() -> Fetching:
    return Fetching()


@pytest.fixture
def tier(fetching: Fetching) -> CloudTier:
    return CloudTier(fetching, lambda: [IMAGE])


def test_it_is_a_remote_tier_without_bounds_whose_bytes_are_not_hashed(tier: CloudTier) -> None:
    assert isinstance(tier, Tier)
    assert isinstance(tier, RemoteTier)
    assert (tier.place, tier.hash_on_adoption, tier.apart) == (CLOUD, False, True)


def test_what_earlier_lives_knew_is_there_without_a_request(tier: CloudTier, fetching: Fetching) -> None:
    (extent,) = tier.scan()
    assert (extent.label, extent.nbytes, extent.digest, extent.fd) == (IMAGE.address, 1000, "d" * 64, -1)
    assert not fetching.asked


def test_a_fetch_is_of_the_image_that_is_known(tier: CloudTier, fetching: Fetching) -> None:
    extent = tier.know(IMAGE)
    draft, tell, stopped = object(), print, bool
    tier.fetch(extent, draft, tell, stopped)  # type: ignore[arg-type]
    assert fetching.asked == [(IMAGE, draft, tell, stopped)]


def test_what_is_freed_is_forgotten_here_and_stays_where_it_is(tier: CloudTier, fetching: Fetching) -> None:
    extent = tier.know(IMAGE)
    tier.free(extent)
    tier.free(extent)
    tier.leave(tier.know(IMAGE))
    tier.verify(extent)
    tier.close()
    assert not fetching.asked


def test_nothing_is_made_there_by_a_fill(tier: CloudTier) -> None:
    with pytest.raises(NotSupportedError, match="trims push"):
        tier.create("k", 1, 10, allocate=True)
    with pytest.raises(NotSupportedError):
        tier.seal(object(), "k", "d")  # type: ignore[arg-type]
    tier.abort(object())  # type: ignore[arg-type]


def test_a_lack_of_descriptors_is_one_and_another_error_is_itself(tier: CloudTier) -> None:
    assert isinstance(tier.explain(OSError(errno.EMFILE, ""), 1), CapacityError)
    error = OSError(errno.EIO, "")
    assert tier.explain(error, 1) is error
