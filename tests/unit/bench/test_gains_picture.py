"""The picture of the README from a record of the demo."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from trims_bench import gains_picture

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_bars_are_as_long_as_their_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {
        "alone_s": 4.0, "exec_s": 0.4, "request_s": 0.04, "memory_alone_bytes": 8 << 20, "memory_shared_bytes": 1 << 20,
    }  # fmt: skip
    record = {"stack": {"processor": "P", "processors": 2}, "processes": 8, "figures": figures}
    (tmp_path / "demo.json").write_text(json.dumps(record))
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "demo.json"), str(tmp_path / "gains.svg")])
    gains_picture.main()
    drawn = ET.parse(tmp_path / "gains.svg").getroot()
    lengths = [int(each.attrib["width"]) for each in drawn if each.tag.endswith("rect")][1:]
    assert lengths == [300, 30, 3, 300, 38]
    texts = " ".join(each.text or "" for each in drawn)
    assert re.findall(r"\(([\d.]+)x\)", texts) == ["10", "100", "8"]
    assert "8 processes" in texts
    assert "P, 2 processors" in texts
