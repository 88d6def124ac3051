"""Evaluations and traces on the web page: begun, watched, read, cancelled and removed, with keys only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from browser import PROGRAM, Browser, Chromium
from endpoints import Endpoint
from fleets import register
from looking import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="no browser: apt-get install chromium, or set TRIMS_BROWSER"),
    pytest.mark.usefixtures("forked_starts"),
]
INPUTS = {"inputs": [{"name": "x", "dtype": "FP64", "shape": [-1]}]}
STATE = "document.querySelector('#evaluations .badge')?.textContent"
REPORT, WATERFALL, LIST = ".stack", ".wf-row", ".evaluation"
BUTTON = "[...document.querySelectorAll('button')].find((each) => each.textContent === '%s').click()"
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def chromium(module_folder: Path) -> Iterator[Chromium]:
    """The browser of all tests here; each has a page that knows nothing of the others."""
    with Chromium(module_folder / "profile") as made:
        yield made


@pytest.fixture
def endpoint(daemon: Daemon, checkpoint: Callable[..., Path]) -> Iterator[Endpoint]:
    """An endpoint with a model."""
    register(daemon, checkpoint, predictor={"function": "own_functions:scale"}, **INPUTS)
    made = Endpoint(daemon.config.runtime_dir)
    yield made
    made.end()


@pytest.fixture
def browser(endpoint: Endpoint, chromium: Chromium) -> Iterator[Browser]:
    """A browser at the page. Afterwards it has reported no error: no exception, and nothing blocked."""
    opened = Browser(chromium)
    opened.open(f"http://127.0.0.1:{endpoint.port}/")
    yield opened
    opened.close()
    assert opened.errors == []


def press(browser: Browser, selector: str) -> None:
    """Press Tab until an element has the focus, and then Enter."""
    browser.wait(f"document.querySelector({json.dumps(selector)})")
    browser.tab_to(selector)
    browser.press("Enter")


def shows(browser: Browser, selector: str) -> None:
    """Wait until an element is there and in sight."""
    browser.wait(f"document.querySelector({json.dumps(selector)})?.checkVisibility()")


def begin(browser: Browser, ways: tuple[str, ...], repeat: int) -> None:
    """Begin an evaluation from the tier cpu, with keys."""
    press(browser, "#to-evaluations")
    press(browser, "#order-open")
    browser.wait("document.getElementById('order-model').value === 'm'")
    wanted = {f"order-tier-{tier}": tier == "cpu" for tier in ("file", "disk", "cpu")}
    wanted |= {f"order-way-{way}": way in ways for way in ("alone", "fresh", "template", "spare", "hot", "settled")}
    for box, is_wanted in wanted.items():
        browser.tab_to(f"#{box}")
        if browser.evaluate(f"document.getElementById('{box}').checked") != is_wanted:
            browser.press(" ")
    browser.evaluate(f"document.getElementById('order-repeat').value = {repeat}")
    press(browser, "#order-begin")


def test_an_evaluation_is_begun_and_read_and_its_row_leads_to_a_waterfall(
    endpoint: Endpoint, browser: Browser, folder: Path
) -> None:
    begin(browser, ("template", "hot"), 2)
    shows(browser, REPORT)
    texts = browser.evaluate("[...document.querySelectorAll('#evaluations .leads th')].map((each) => each.textContent)")
    assert texts == ["cpu template", "- hot"]
    assert "Stages of the sample nearest to the median" in browser.text()
    assert "2 samples are too few" in browser.text()
    report = browser.evaluate("location.hash")
    saves_the_report(browser, folder, report.rpartition("/")[2])
    press(browser, "[aria-label='Trace of cpu template']")
    shows(browser, WATERFALL)
    roles = browser.evaluate("[...document.querySelectorAll('.wf-role')].map((each) => each.textContent)")
    assert {"evaluation", "predictor"} <= set(roles)
    trace = browser.evaluate("location.hash")
    browser.call("Page.reload")
    shows(browser, WATERFALL)
    assert browser.evaluate("location.hash") == trace
    compares(endpoint, browser)
    both = browser.evaluate("location.hash")
    browser.resize(360)
    views = {
        trace: WATERFALL,
        report: REPORT,
        "#/evaluations": LIST,
        "#/traces": "#traces .data",
        both: "#evaluations .data",
    }
    for hash_, selector in views.items():
        browser.evaluate(f"location.hash = {json.dumps(hash_)}")
        shows(browser, selector)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), hash_


def saves_the_report(browser: Browser, folder: Path, identity: str) -> None:
    """Press the button, and wait for the file that the browser saves."""
    browser.save_to(folder)
    browser.evaluate(BUTTON % "Save HTML report")
    saved = folder / f"evaluation-{identity}.html"
    wait_until(lambda: saved.exists() and saved.read_bytes().endswith(b"</html>\n"), "the report is saved")


def compares(endpoint: Endpoint, browser: Browser) -> None:
    """Have another evaluation, see it in the list until it has ended, and compare both."""
    order = {"model": "m", "from": ["cpu"], "how": ["hot"], "repeat": 2}
    assert endpoint.ask("POST", "/v1/evaluations", order)[0] == 202
    press(browser, "#to-evaluations")
    browser.wait("document.querySelectorAll('.evaluation .badge.warm').length === 2")  # both have ended
    for _ in range(2):
        browser.tab_to(".evaluation input:not(:checked)")
        browser.press(" ")
    browser.evaluate(BUTTON % "Compare the two")
    browser.wait("document.body.innerText.includes('The stacks are equal.')")
    assert "- hot" in browser.text()


def test_an_evaluation_is_watched_cancelled_and_removed(endpoint: Endpoint, browser: Browser) -> None:
    begin(browser, ("hot",), 2000)
    browser.wait("document.querySelector('progress')?.value >= 1")
    assert "of 2000 samples" in browser.text()
    assert "Last: - hot" in browser.text()
    identity = browser.evaluate("location.hash").rpartition("/")[2]
    browser.evaluate(BUTTON % "Cancel")
    browser.wait(f"{STATE} === 'cancelled'")
    press(browser, "#to-evaluations")
    shows(browser, f"[aria-label='Resume {identity}']")
    press(browser, f"[aria-label='Resume {identity}']")
    browser.wait(f"{STATE} === 'running'")
    browser.evaluate(BUTTON % "Cancel")
    browser.wait(f"{STATE} === 'cancelled'")
    browser.evaluate(BUTTON % "Remove…")
    browser.wait("document.getElementById('confirm').open")
    browser.tab_to("#confirm-yes")
    browser.press("Enter")
    browser.wait("document.body.innerText.includes('Nothing was evaluated yet.')")
    assert endpoint.ask("GET", f"/v1/evaluations/{identity}")[0] == 400


def test_what_cannot_be_evaluated_says_why(endpoint: Endpoint, browser: Browser) -> None:
    begin(browser, (), 2)
    browser.wait("document.getElementById('evaluations-error').textContent.includes('is no way')")
    assert not browser.evaluate("document.getElementById('evaluations-error').hidden")
    browser.evaluate("location.hash = '#/evaluations/no-such'")
    browser.wait("document.getElementById('evaluations-error').textContent.includes('no-such')")
    browser.evaluate(f"location.hash = '#/traces/{'0' * 32}'")
    browser.wait("document.getElementById('traces-error').textContent.includes('no trace')")


def test_a_request_is_traced_and_its_waterfall_shown(endpoint: Endpoint, browser: Browser) -> None:
    press(browser, "[aria-label='Try m']")
    browser.wait("document.activeElement.id === 'input-0'")
    browser.write("[1.5]")
    press(browser, "#send-traced")
    shows(browser, WATERFALL)
    browser.wait("document.getElementById('traces-progress').textContent === ''")
    names = browser.evaluate("[...document.querySelectorAll('.wf-text')].map((each) => each.textContent)")
    assert names[0] == "POST /v2/models/{model}/infer"
    assert "predict" in names
    identity = browser.evaluate("location.hash").rpartition("/")[2]

    def is_listed() -> bool:
        return bool(identity in str(endpoint.ask("GET", "/v1/traces")[1]))

    wait_until(is_listed, "the trace is listed")


def lines(many: int) -> list[dict[str, Any]]:
    """A root of ten seconds, and parts of one to three milliseconds, each third one within the one before."""
    span = {"share": 0.1, "level": "model", "pid": 7, "parent_id": "", "role": "predictor"}
    root = {**span, "depth": 0, "name": MARKUP, "begin_s": 0.0, "seconds": 10.0, "span_id": "a"}
    parts = [
        {
            **span, "depth": 1 + (i % 3 == 2), "name": f"part {i}", "begin_s": i / 1000, "seconds": (1 + i % 3) / 1000,
            "span_id": str(i), "attributes": {MARKUP: MARKUP},
        }
        for i in range(many)
    ]  # fmt: skip
    left = {"depth": 1, "name": "unattributed", "role": "", "begin_s": 0.0, "seconds": 2.0, "share": 0.2}
    return [{**root, "attributes": {MARKUP: [MARKUP]}}, *parts, left]


def test_a_waterfall_of_5000_spans_has_elements_for_those_in_sight(browser: Browser) -> None:
    browser.evaluate("location.hash = '#/traces'")
    browser.wait("document.querySelector('#traces .empty')")
    browser.evaluate(
        "import('/ui/files/waterfall.js').then(({waterfall}) => "
        f"document.getElementById('traces').replaceChildren(waterfall({json.dumps({'lines': lines(5000)})})))"
    )
    rows = "document.querySelector('.wf-body').getAttribute('aria-rowcount')"
    chosen = "document.querySelector('.wf-row.chosen .wf-text').textContent"
    assert browser.evaluate(rows) == "5002"
    assert browser.evaluate("document.querySelectorAll('.wf-row').length") < 100
    assert browser.evaluate("document.querySelectorAll('#traces img').length") == 0, "data is text, not markup"
    assert browser.evaluate(chosen) == MARKUP
    browser.tab_to(".wf-body")
    for key in ("ArrowDown", "ArrowDown"):
        browser.press(key)
    assert browser.evaluate(chosen) == "part 1"
    assert MARKUP in browser.evaluate("document.querySelector('.wf-details .data').innerText")
    browser.press("ArrowLeft")
    assert browser.evaluate(rows) == "5001"
    browser.press("ArrowRight")
    browser.press("Enter")
    assert browser.evaluate(rows) == "2"
    browser.press("Escape")
    assert browser.evaluate(rows) == "5002"
    browser.press("End")
    browser.wait(f"{chosen} === 'unattributed'")
    assert browser.evaluate("document.querySelector('.wf-row.chosen .wf-bar').classList.contains('gap')")
    browser.evaluate(
        "{const least = document.querySelector('.wf-controls input'); least.value = '2.5';"
        "least.dispatchEvent(new Event('input'));}"
    )
    # Spans of 3 ms lie within those of 2 ms, and go with them.
    assert browser.evaluate(rows) == "2"


def test_what_an_evaluation_says_is_text(browser: Browser) -> None:
    median = {"value": 0.5, "low": 0.4, "high": 0.6, "samples": 5}
    row = {
        "tier": MARKUP, "way": MARKUP, "batch": 1, "seconds": median, "verdict": MARKUP, "stages": {MARKUP: 0.5},
        "ideal_s": 0.1, "share_of_ideal": 0.2, "over_alone": None, "over_fresh": 2.0, "accounted": 1.0,
        "trace_id": MARKUP,
    }  # fmt: skip
    layer = {"name": MARKUP, "type": MARKUP, "seconds": 0.1, "share": 0.2, "device_s": 0.0, "input_shapes": [[1, 2]]}
    layers = {
        "model": MARKUP, "lacks": [MARKUP], "answers_differ": True,
        "levels": [{"level": MARKUP, "seconds": median, "overhead_s": -0.1}],
        "layers": {"run_s": 0.5, "layers": [layer] * 40, "accounted": 1.0, "operators": 3},
    }  # fmt: skip
    batch = {
        "batch": 2,
        "way": MARKUP,
        "run": median,
        "per_s": 4.0,
        "gain": 0.04,
        "is_optimal": True,
        "next_gain": 0.01,
    }
    latency = {"p50": 0.001, "p90": 0.002, "p99": 0.25, "p999": 0.5, "longest": 1.0}
    of_model = {"model": MARKUP, "requests": 9, "answered": 8, "cold": None, "latency": latency, "cold_latency": None}
    load = {
        "scenario": MARKUP, "options": {"rate": 123.25}, "latency": latency, "first_byte": None, "models": [of_model],
        "probes": [{"rate": 77.5, "held": True}], "max_rate": None,
    }  # fmt: skip
    found = {
        "id": MARKUP, "model": MARKUP, "began_unix_s": 1.0, "tiers": [MARKUP], "ways": [MARKUP], "repeats": 5,
        "batches": [1], "level": MARKUP, "idle_s": 2, "scenario": {MARKUP: MARKUP}, "rows": [row],
        "batch_sizes": [batch], "documents": {"layers": [layers], "workload": [load]},
        "stack": {MARKUP: {MARKUP: MARKUP}, "memory_bytes": 1 << 30}, "ended": False, "answers_differ": True,
        "discarded": {MARKUP: 3}, "unreachable": {MARKUP: MARKUP},
    }  # fmt: skip
    browser.evaluate(
        "import('/ui/files/report.js').then(({report}) => "
        f"document.querySelector('footer').append(...report({json.dumps(found)})))"
    )
    assert browser.evaluate("document.querySelectorAll('footer img').length") == 0
    text = browser.text()
    assert text.count(MARKUP) > 20
    for said in (
        "10 more",
        "options.rate",
        "123.25",
        "250.0 ms",
        "77.5",
        "optimal",
        "\u2212100.0 ms",
        "3 discarded",
        "+4 %",
    ):
        assert said in text, said
