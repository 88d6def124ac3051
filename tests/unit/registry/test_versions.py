"""Versions of one model: what a version or label leads to, and which changes are refused."""

from __future__ import annotations

import pytest

from trims.core.errors import CallerError, InUseError, ModelNotFoundError
from trims.registry.versions import PLAIN, Alias, Versions

TWO = Versions("m", ("1", "2"), {PLAIN: Alias("1"), "stable": Alias("2", "1")})


def test_an_unknown_version_or_label_is_refused_with_what_there_is() -> None:
    assert [TWO.version_of(text) for text in ("", "1", "2", "stable")] == ["1", "1", "2", "2"]
    with pytest.raises(ModelNotFoundError, match="no version or label '3'; it has the versions 1, 2 and the labels st"):
        TWO.version_of("3")


def test_an_alias_to_a_version_that_another_program_removed_says_how_to_switch_it() -> None:
    dangling = Versions("m", ("2",), {PLAIN: Alias("1")})
    with pytest.raises(ModelNotFoundError, match=r"'m' leads to the version '1'.*`trims alias m VERSION` switches"):
        assert dangling.default
    assert dangling.version_of("2") == "2"
    assert dangling.rows() == ["m"]
    assert dangling.switched(PLAIN, "2").aliases == {PLAIN: Alias("2")}


def test_rows_are_the_name_of_a_model_with_one_version_else_name_and_version() -> None:
    assert Versions("m", ("1",), {PLAIN: Alias("1")}).rows() == ["m"]
    assert TWO.rows() == ["m@1", "m@2"]
    assert TWO.switched(PLAIN, "2").rows() == ["m@2", "m@1"]
    assert TWO.switched(PLAIN, "2").leading_to("2") == ["m", "m@stable"]


def test_a_switch_to_where_an_alias_leads_already_keeps_what_it_led_to_before() -> None:
    assert TWO.switched("stable", "2") is TWO
    assert TWO.switched_back("stable").aliases["stable"] == Alias("1", "2")


def test_a_version_that_takes_the_place_of_another_has_its_aliases_and_its_position() -> None:
    assert TWO.exchanged("2", "3") == Versions("m", ("1", "3"), {PLAIN: Alias("1"), "stable": Alias("3", "1")})
    assert TWO.exchanged("1", "3").aliases["stable"] == Alias("2", ""), "what it led to is gone"
    with pytest.raises(CallerError, match="has a label 'stable'"):
        TWO.exchanged("1", "stable")


def test_a_label_cannot_be_called_as_a_version_nor_be_one_of_too_many() -> None:
    with pytest.raises(CallerError, match="'2' is a version of 'm', so it can be no label"):
        TWO.switched("2", "1")
    many = TWO
    for number in range(99):
        many = many.switched(f"l{number}", "1")
    with pytest.raises(CallerError, match="100 labels"):
        many.switched("one-more", "1")
    assert many.switched("l5", "2").aliases["l5"].version == "2"


def test_the_only_version_goes_with_the_labels_that_lead_to_it() -> None:
    one = Versions("m", ("1",), {PLAIN: Alias("1"), "stable": Alias("1")})
    for text in ("", "1"):
        assert one.without(text) == Versions("m", ())
    with pytest.raises(CallerError, match="name the version to remove"):
        one.without("stable")


def test_a_version_that_aliases_lead_to_is_not_removed_while_there_are_others() -> None:
    both = TWO.switched(PLAIN, "2")
    with pytest.raises(InUseError, match="m@2 is what m and m@stable leads to"):
        both.without("2")
    assert both.without("1").aliases == {PLAIN: Alias("2"), "stable": Alias("2")}
