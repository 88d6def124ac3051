"""Manifests from elsewhere, and those that go there: which fields count, and which are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import AddressRefusedError
from trims.manifests.foreign import foreign_fields, portable_fields

if TYPE_CHECKING:
    from pathlib import Path


def test_fields_of_this_machine_are_not_taken() -> None:
    raw = {
        "name": "x", "artifact": {"path": "/etc/passwd"}, "residency": {"pin": True}, "environment": "e",
        "framework": {"name": "torch"}, "license": "MIT",
    }  # fmt: skip
    assert foreign_fields(raw, "s3://b/m") == {"framework": {"name": "torch"}, "license": "MIT"}


@pytest.mark.parametrize(
    "value",
    [
        "/etc/passwd",
        "~/x",
        "../x",
        "a/../../x",
        "a\\..\\x",
        "file:///x",
        "http://169.254.169.254/",
        "s3://b/k",
        "os:system",
    ],
)
def test_a_field_that_leads_to_a_file_a_host_or_code_is_refused_with_its_place(value: str) -> None:
    raw: dict[str, Any] = {"preprocess": [{"step": {"file": "x", "deep": [1, value]}}]}
    with pytest.raises(AddressRefusedError) as raised:
        foreign_fields(raw, "s3://b/m")
    assert "s3://b/m" in str(raised.value)
    assert "preprocess[0].step.deep[1]" in str(raised.value)


def test_what_is_for_people_may_name_anything() -> None:
    raw = {"description": "see https://h and ../x", "attributes": {"paper": "https://h"}}
    assert foreign_fields(raw, "s3://b/m") == raw


def test_a_field_that_names_a_file_beside_the_manifest_here_is_refused(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("secret")
    raw = {"outputs": [{"labels": "words.txt"}]}
    assert foreign_fields(raw, "s3://b/m") == raw
    with pytest.raises(AddressRefusedError, match="file of this machine"):
        foreign_fields(raw, "s3://b/m", str(tmp_path))
    assert foreign_fields({"outputs": [{"labels": "x" * 5000}]}, "s3://b/m", str(tmp_path))


def test_what_names_files_or_code_here_stays_here_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("w")
    raw = {
        "framework": {"name": "torch"}, "preprocess": [{"call": "my.mod:fn"}], "inputs": [{"name": "x"}],
        "outputs": [{"labels": "words.txt"}], "artifact": {"path": "m.pt"},
    }  # fmt: skip
    assert portable_fields(raw, str(tmp_path)) == (
        {"framework": {"name": "torch"}}, ["preprocess", "outputs", "inputs"],
    )  # fmt: skip
    assert portable_fields({"inputs": [{"name": "x"}]}, "") == ({"inputs": [{"name": "x"}]}, [])
