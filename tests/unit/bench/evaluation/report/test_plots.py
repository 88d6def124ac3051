"""Pictures of evaluations: files of the form that was asked for, equal for equal evaluations."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

import pytest
from evaluations import evaluated, samples
from trims_bench.evaluation.report.plots import picture

from trims.core.errors import NotSupportedError

TAKEN = [
    *samples("cpu", "fresh", 2.0), *samples("-", "hot", 1.0), *samples("-", "hot", 1.0, batch=2, steady_s=0.2),
]  # fmt: skip


def test_a_picture_has_the_form_that_was_asked_for() -> None:
    assert picture(evaluated(TAKEN), "png").startswith(b"\x89PNG")
    drawn = picture(evaluated(TAKEN), "svg")
    root = ET.fromstring(drawn)
    assert root.tag.endswith("svg")
    assert float(root.attrib["viewBox"].split()[2]) > 400
    assert drawn == picture(evaluated(TAKEN), "svg")


def test_an_evaluation_without_samples_has_a_picture_too() -> None:
    assert picture(evaluated([]), "png").startswith(b"\x89PNG")


def test_without_matplotlib_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(NotSupportedError):
        picture(evaluated(TAKEN), "png")
