"""The shipped contract suite, and what is particular to this policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from largest_first import LargestFirst

from trims.testing.policies import PolicyContract, drain, usage

if TYPE_CHECKING:
    from trims.core.policy import Policy


class TestLargestFirst(PolicyContract):
    """All that every policy must keep."""

    def make(self) -> Policy:
        """See `PolicyContract.make`."""
        return LargestFirst()


def test_the_largest_goes_first() -> None:
    policy = LargestFirst()
    for key, nbytes in (("small", 1), ("large", 100), ("middle", 10)):
        policy.idle(usage(key, nbytes=nbytes))
    assert drain(policy) == ["large", "middle", "small"]
