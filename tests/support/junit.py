"""Reports of test runners in JUnit's form."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from pathlib import Path


def outcomes(report: Path) -> dict[str, str]:
    """Return test -> outcome of a report; there must be one."""
    found = {}
    for case in ET.parse(report).iter("testcase"):
        kinds = [each.tag for each in case if each.tag in ("failure", "error", "skipped")]
        found[f"{case.get('classname')}.{case.get('name')}"] = kinds[0] if kinds else "passed"
    assert found, report.read_text()[:500]
    return found
