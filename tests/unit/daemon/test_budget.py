"""The budget of descriptors: sessions and images share what the process's limit leaves."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.daemon.budget import RESERVED, Budget, budget, raise_limit


def limited(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 16))
def test_sessions_and_images_fit_the_limit_and_each_gets_some(limit: int, max_sessions: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        limited(monkeypatch, limit)
        made = budget(max_sessions)
    assert made.limit == limit
    assert 1 <= made.sessions <= max_sessions
    assert made.images >= 16
    if limit >= RESERVED + 32:
        assert made.sessions + made.images == limit - RESERVED


@pytest.mark.parametrize(
    ("limit", "max_sessions", "sessions", "images"),
    [(1024, 4096, 416, 416), (1024, 10, 10, 822), (100, 4096, 16, 16), (100, 3, 3, 29)],
    ids=["half for each", "few sessions leave the rest to images", "the least", "the least, few sessions"],
)
def test_what_sessions_do_not_take_is_left_to_images(
    monkeypatch: pytest.MonkeyPatch, limit: int, max_sessions: int, sessions: int, images: int
) -> None:
    limited(monkeypatch, limit)
    assert budget(max_sessions) == Budget(limit, sessions, images)


@pytest.mark.parametrize(("soft", "hard", "asked"), [(1024, 4096, [(4096, 4096)]), (4096, 4096, [])])
def test_the_limit_is_raised_as_far_as_it_may_be(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, asked: list[tuple[int, int]]
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    raise_limit()
    assert limits == asked
