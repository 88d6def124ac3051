"""The report as one HTML file."""

from __future__ import annotations

from html.parser import HTMLParser

from evaluations import evaluated, samples
from trims_bench.evaluation.records import Sample
from trims_bench.evaluation.report.page import as_html

_OPEN = {"meta", "br", "hr", "img", "link", "input"}


class Checked(HTMLParser):
    """Collects addresses, cells and elements, and insists that elements nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag not in _OPEN:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_the_page_needs_no_other_file_and_has_every_start() -> None:
    taken = [*samples("cpu", "fresh", 2.0), *samples("-", "hot", 1.0), *samples("-", "hot", 1.0, batch=2)]
    found = Checked(as_html([evaluated(taken)]))
    assert all(each.startswith("#") for each in found.addresses), "references within its own pictures"
    assert {"svg", "table"} <= found.tags
    assert "script" not in found.tags
    assert {"cpu fresh", "- hot", "- hot x2"} <= set(found.cells)


def test_names_of_users_are_text_and_never_markup() -> None:
    nasty = "<script>alert(1)</script>"
    bad = [Sample("disk", "fresh", 0, why_not=nasty)]
    one = evaluated([*samples("cpu", "fresh", 2.0), *bad], model=nasty, unreachable={"gpu": nasty}, ended=False)
    found = Checked(as_html([one, one], compare=True))
    assert "script" not in found.tags
