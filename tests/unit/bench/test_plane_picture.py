"""The picture of the plane: each cell where its room, popularity and clients put it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from trims_bench.plane_picture import Cell, cells, picture

COMPARISONS = [
    {"what": f"room {room}, Zipf {zipf}, {who}", "value": value}
    for value, (room, zipf, who) in enumerate(
        (room, zipf, who)
        for zipf in ("0.0", "1.0")
        for room in ("10%", "120%")
        for who in ("8 clients", "1 client", "4 clients, cold")
    )
]


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_cells_are_read_from_what_the_figure_compares() -> None:
    found = cells([*COMPARISONS, {"what": "something else", "value": 7}])
    assert len(found) == len(COMPARISONS)
    assert found[2] == Cell("10%", "0.0", "4 clients, cold", 2.0)


def test_the_picture_has_every_value_and_its_axes() -> None:
    told = texts(picture(cells(COMPARISONS)))
    assert {f"{value:.1f}" for value in range(len(COMPARISONS))} <= set(told)
    assert [each for each in told if "client" in each] == ["1 client", "8 clients", "4 clients, cold"]
    assert told.count("120%") == 2
    assert {"Zipf 0.0", "Zipf 1.0"} <= set(told)


def test_a_cell_in_which_the_other_side_is_faster_stands_out() -> None:
    slower, faster = (picture([Cell("10%", "0.0", "1 client", value)]) for value in (0.9, 1.1))
    assert "#d9534f" in slower
    assert "#d9534f" not in faster
