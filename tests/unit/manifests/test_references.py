"""References: a name, and the version or label behind the first @."""

from __future__ import annotations

import pytest

from trims.manifests.references import name_of, reference_to, split_reference


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("bert", ("bert", "")),
        ("bert@1.10", ("bert", "1.10")),
        ("bert@stable", ("bert", "stable")),
        ("bert@", ("bert", "")),
        ("bert@1@2", ("bert", "1@2")),
        ("@1", ("", "1")),
        ("", ("", "")),
        ("file:/models/a@b.safetensors", ("file:/models/a@b.safetensors", "")),
        ("/models/a@b", ("/models/a@b", "")),
    ],
)
def test_a_reference_has_a_name_and_perhaps_a_version_and_a_path_has_none(
    reference: str, parts: tuple[str, str]
) -> None:
    assert split_reference(reference) == parts
    assert name_of(reference) == parts[0]


def test_a_reference_is_written_as_it_is_read() -> None:
    assert reference_to("bert", "") == "bert"
    assert split_reference(reference_to("bert", "1+cpu")) == ("bert", "1+cpu")
