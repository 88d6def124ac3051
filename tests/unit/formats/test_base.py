"""Checks of every converter on its options and on the names inside an artifact."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import ArtifactError
from trims.formats.base import Converter, Measurable, check_options, check_relative
from trims.formats.numpy.npy import NpyConverter
from trims.formats.safetensors.converter import SafetensorsConverter


@pytest.mark.parametrize("name", ["", "/a", "..", "../a", "a/../../b", "a\0"])
def test_names_inside_an_artifact_stay_in_its_folder(name: str) -> None:
    with pytest.raises(ArtifactError, match="which leaves its folder"):
        check_relative(Path("index.json"), name)
    for inside in ("sub/a..b.bin", "sub/../b.bin", "..b/c"):
        check_relative(Path("index.json"), inside)


PARTS = st.one_of(st.sampled_from(["..", ".", "a"]), st.text(st.characters(blacklist_characters="/\0"), min_size=1))


@given(st.lists(PARTS, min_size=1).map("/".join))
def test_a_name_is_accepted_exactly_if_it_stays_below_its_folder(name: str) -> None:
    steps = [{"..": -1, ".": 0}.get(part, 1) for part in name.split("/")]
    if min(accumulate(steps)) < 0:
        with pytest.raises(ArtifactError):
            check_relative(Path("index.json"), name)
    else:
        check_relative(Path("index.json"), name)


def test_an_unknown_option_is_named_with_the_known_ones() -> None:
    check_options(Path("m"), {"epoch": 1, "allow_pickle": True}, ["epoch"])
    with pytest.raises(ArtifactError, match=r"^m: unknown options a, z; known are allow_pickle, epoch$"):
        check_options(Path("m"), {"z": 1, "epoch": 1, "a": 2}, ["epoch"])


@pytest.mark.parametrize("value", [1, 0, "yes", None])
def test_only_true_and_false_say_whether_code_may_run(value: object) -> None:
    with pytest.raises(ArtifactError, match=f"m: allow_pickle must be true or false, not {value!r}"):
        check_options(Path("m"), {"allow_pickle": value}, [])


def test_a_class_without_a_method_is_no_converter() -> None:
    assert isinstance(NpyConverter(), Converter)

    class WithoutPlan:
        format, version, host_specific = "x", 1, False
        needs_child = frameworks = claims = files = NpyConverter.files

    assert not isinstance(WithoutPlan(), Converter)
    assert not isinstance(NpyConverter(), Measurable)
    assert isinstance(SafetensorsConverter(), Measurable)
