"""Where a daemon is found: the first variable that says it counts."""

from __future__ import annotations

import os

import pytest

from trims.wire.address import default_runtime_dir, why_too_long

OWN = f"trims-{os.getuid()}"


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"TRIMS_RUNTIME_DIR": "/a", "XDG_RUNTIME_DIR": "/b", "TMPDIR": "/c"}, "/a"),
        ({"TRIMS_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": "/b", "TMPDIR": "/c"}, "/b/trims"),
        ({"XDG_RUNTIME_DIR": "", "TMPDIR": "/c/"}, f"/c/{OWN}"),
        ({}, f"/tmp/{OWN}"),
    ],
)
def test_the_folder_is_the_one_named_first_and_else_one_of_this_user(environment: dict[str, str], folder: str) -> None:
    assert default_runtime_dir(environment) == folder


def test_the_environment_of_this_process_is_what_counts_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", "/said/here")
    assert default_runtime_dir() == "/said/here"


@pytest.mark.parametrize(
    ("name", "fits"), [("x" * 87, True), ("x" * 88, False), ("\u00fc" * 43, True), ("\u00fc" * 44, False)]
)
def test_a_runtime_folder_is_as_long_as_a_socket_in_it_can_have(name: str, fits: bool) -> None:
    assert (why_too_long(f"/{name}") == "") == fits
