"""The web page in a headless browser: what it shows, tries and orders, with keys only, and on bad days."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
from browser import PROGRAM, Browser, Chromium
from endpoints import Endpoint
from fleets import register
from trims_predictors.tensors import from_array

from trims.control import admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="no browser: apt-get install chromium, or set TRIMS_BROWSER"),
    pytest.mark.usefixtures("forked_starts"),
]
X = [{"name": "x", "dtype": "FP64", "shape": [-1]}]
TEXT = [{"name": "text", "dtype": "BYTES", "shape": [1]}]
ANSWERED = "!document.getElementById('answer').hidden"
SHOWN = "document.querySelectorAll('.model').length === 1"


@pytest.fixture(scope="module")
def chromium(module_folder: Path) -> Iterator[Chromium]:
    """The browser of all tests here; each has a page that knows nothing of the others."""
    with Chromium(module_folder / "profile") as made:
        yield made


@pytest.fixture
def endpoint(daemon: Daemon) -> Iterator[Endpoint]:
    """An endpoint of the daemon."""
    made = Endpoint(daemon.config.runtime_dir)
    yield made
    made.end()


@pytest.fixture
def visit(chromium: Chromium) -> Iterator[Callable[..., Browser]]:
    """Open a browser at an endpoint's page. Afterwards it has reported no error: no exception, and nothing blocked."""
    opened: list[Browser] = []

    def make(endpoint: Endpoint, width: int = 1400) -> Browser:
        opened.append(Browser(chromium, width))
        opened[-1].open(f"http://127.0.0.1:{endpoint.port}/")
        return opened[-1]

    yield make
    for browser in opened:
        browser.close()
        assert browser.errors == []


def choose(browser: Browser, label: str) -> None:
    """Press Tab until the control with that label has the focus, and then Enter."""
    browser.wait(f"document.querySelector('[aria-label={json.dumps(label)}]')")
    browser.tab_to(f"[aria-label={json.dumps(label)}]")
    browser.press("Enter")


def test_the_page_says_how_to_add_the_first_model_and_shows_it_then(
    daemon: Daemon, endpoint: Endpoint, visit: Callable[..., Browser], checkpoint: Callable[..., Path]
) -> None:
    browser = visit(endpoint)
    browser.wait("!document.getElementById('no-models').hidden")
    assert "trims add" in browser.text()
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"}, inputs=X, description="<img src=x>")
    browser.wait(SHOWN)
    assert "<img src=x>" in browser.text(), "data is text, not markup"
    assert browser.evaluate("document.querySelectorAll('.model img').length") == 0


def test_a_model_is_added_on_the_page_and_a_wrong_path_is_named(
    daemon: Daemon, visit: Callable[..., Browser], checkpoint: Callable[..., Path], folder: Path
) -> None:
    token = folder / "token"
    token.write_text("secret")
    token.chmod(0o600)
    endpoint = Endpoint(daemon.config.runtime_dir, "--token-file", str(token))
    try:
        browser = visit(endpoint)
        browser.wait("document.getElementById('token-dialog').open")
        browser.write("secret")
        browser.press("Enter")
        browser.wait("!document.getElementById('no-models').hidden")
        browser.tab_to("#add-open")
        browser.press("Enter")
        for path, outcome in (("/nowhere/at/all", "#add-error:not([hidden])"), (str(checkpoint("added")), ".model")):
            browser.evaluate("document.getElementById('add-path').value = ''")
            browser.evaluate("document.getElementById('add-path').focus()")
            browser.write(path)
            browser.press("Enter")
            browser.wait(f"document.querySelector({json.dumps(outcome)})")
            assert path in browser.text() or outcome == ".model"
        assert browser.evaluate("document.getElementById('add-error').hidden")
        assert browser.evaluate("document.getElementById('add-path').value") == ""
    finally:
        endpoint.end()


def test_a_model_is_tried_with_the_keyboard_and_its_answer_tells_its_stages(
    daemon: Daemon, endpoint: Endpoint, visit: Callable[..., Browser], checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"}, inputs=X)
    browser = visit(endpoint)
    choose(browser, "Try m")
    browser.wait("document.activeElement.id === 'input-0'")
    choose(browser, "Fill a sample for x")
    assert browser.evaluate("document.getElementById('input-0').value") == "[0]"
    browser.evaluate("document.getElementById('input-0').value = '[1, 2.5]'")
    browser.tab_to("#send")
    browser.press("Enter")
    browser.wait(ANSWERED)
    text = browser.text()
    assert "Cold" in text
    assert "start its process" in text
    assert "[2, 5]" in text
    assert browser.evaluate("document.querySelectorAll('.bar').length") == 10
    browser.press("Enter")
    browser.wait("document.querySelector('.badge').textContent === 'Warm'")
    assert browser.evaluate("document.querySelectorAll('.bar').length") == 5


def test_a_text_and_a_model_without_stated_inputs_can_be_tried(
    daemon: Daemon, endpoint: Endpoint, visit: Callable[..., Browser], checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Echo"}, inputs=TEXT)
    browser = visit(endpoint)
    choose(browser, "Try m")
    browser.wait("document.activeElement.id === 'input-0'")
    browser.write("zwölf <b>")
    browser.evaluate("document.getElementById('trial-form').requestSubmit()")
    browser.wait(ANSWERED)
    assert '["zwölf <b>"]' in browser.text()
    register(daemon, checkpoint, "free", predictor={"call": "own_predictors:Scaler"})
    choose(browser, "Try free")
    browser.wait("document.activeElement.id === 'input-all'")
    browser.write('[{"name": "x", "datatype": "FP64", "shape": [1], "data": [4]}]')
    browser.evaluate("document.getElementById('trial-form').requestSubmit()")
    browser.wait("document.querySelector('#answer pre')?.textContent === '[8]'")
    browser.wait("document.getElementById('input-0')")  # a predictor has reported its inputs by now


def test_a_request_that_is_wrong_says_why(
    daemon: Daemon, endpoint: Endpoint, visit: Callable[..., Browser], checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Picky"}, inputs=X)
    browser = visit(endpoint)
    choose(browser, "Try m")
    browser.wait("document.activeElement.id === 'input-0'")
    for given, said in (("", "press Sample"), ("[1", "this is not JSON"), ("[-1]", "x is negative")):
        browser.evaluate(f"document.getElementById('input-0').value = {json.dumps(given)}")
        browser.evaluate("document.getElementById('trial-form').requestSubmit()")
        browser.wait(f"document.getElementById('trial-error').textContent.includes({json.dumps(said)})")


def test_a_model_is_loaded_pinned_and_evicted_after_a_confirmation(
    daemon: Daemon, endpoint: Endpoint, visit: Callable[..., Browser], checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"}, inputs=X)
    browser = visit(endpoint)
    with admin(daemon.config.runtime_dir) as control:
        choose(browser, "Load m")
        browser.wait("document.getElementById('confirm').open")
        browser.press("Escape")
        browser.wait("!document.getElementById('confirm').open")
        assert "cpu" not in {replica.place for replica in control.show("m").replicas}
        for label in ("Load m", "Pin m at cpu"):
            choose(browser, label)
            browser.wait("document.getElementById('confirm').open")
            browser.tab_to("#confirm-yes")
            browser.press("Enter")
        browser.wait("document.querySelector('.stay.pinned')")
        assert browser.evaluate("document.querySelector('[aria-label=\"Evict m from cpu\"]').disabled")
        for label in ("Unpin m at cpu", "Evict m from cpu"):
            browser.wait(f"document.querySelector('[aria-label={json.dumps(label)}]:enabled')")
            choose(browser, label)
            browser.wait("document.getElementById('confirm').open")
            browser.tab_to("#confirm-yes")
            browser.press("Enter")
        browser.wait("!document.querySelector('[aria-label=\"Evict m from cpu\"]')")
        assert "cpu" not in {replica.place for replica in control.show("m").replicas}


def test_the_page_asks_for_the_token_and_says_when_it_is_wrong(
    daemon: Daemon, folder: Path, visit: Callable[..., Browser], checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"}, inputs=X)
    token = folder / "token"
    token.touch(0o600)
    token.write_text("secret")
    endpoint = Endpoint(daemon.config.runtime_dir, "--token-file", os.fspath(token))
    try:
        browser = visit(endpoint)
        browser.wait("document.getElementById('token-dialog').open")
        browser.write("wrong")
        browser.press("Enter")
        browser.wait("document.getElementById('token-error').textContent.includes('does not accept')")
        browser.write("secret")
        browser.press("Enter")
        browser.wait(SHOWN)
        assert browser.evaluate("localStorage.length + document.cookie.length") == 0
        browser.call("Page.reload")
        browser.wait(SHOWN)
    finally:
        endpoint.end()


def test_the_page_says_that_the_daemon_is_away_and_goes_on_once_it_is_back(
    serve: Callable[..., Daemon], visit: Callable[..., Browser], checkpoint: Callable[..., Path]
) -> None:
    first = serve()
    register(first, checkpoint, predictor={"call": "own_predictors:Scaler"}, inputs=X)
    endpoint = Endpoint(first.config.runtime_dir)
    try:
        browser = visit(endpoint)
        browser.wait(SHOWN)
        first.ask_to_end()
        first.stop()
        browser.wait("document.getElementById('banner-text').textContent.includes('No daemon answers')")
        serve()
        browser.wait("document.getElementById('banner').hidden && document.querySelectorAll('.model').length === 1")
    finally:
        endpoint.end()


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_wider_than_the_window(
    daemon: Daemon, endpoint: Endpoint, visit: Callable[..., Browser], checkpoint: Callable[..., Path], width: int
) -> None:
    name = "a-model-with-a-name-that-is-longer-than-a-narrow-window-has-room-for"
    register(daemon, checkpoint, name, predictor={"call": "own_predictors:Scaler"}, inputs=X)
    browser = visit(endpoint, width)
    choose(browser, f"Try {name}")
    browser.wait("document.activeElement.id === 'input-0'")
    browser.write(f"[{', '.join(['123456.789'] * 200)}]")
    browser.evaluate("document.getElementById('trial-form').requestSubmit()")
    browser.wait(ANSWERED)
    assert "200 elements, shown by their ends" in browser.text()
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_tensors_of_every_type_are_read_as_the_model_gave_them(
    endpoint: Endpoint, visit: Callable[..., Browser]
) -> None:
    given = {
        "FP16": (np.array([0.5, -2.0, np.inf, 6e-8], "f2"), "[0.5, -2, Infinity, 5.96e-8]"),
        "BF16": (np.array([1.5, -3.0], ml_dtypes.bfloat16), "[1.5, -3]"),
        "FP32": (np.array([[0.1, np.nan]], "f4"), "[[0.1, NaN]]"),
        "INT64": (np.array([2**63 - 1, -1]), "[9223372036854775807, -1]"),
        "UINT64": (np.array([2**64 - 1], "u8"), "[18446744073709551615]"),
        "BOOL": (np.array([True, False]), "[true, false]"),
        "BYTES": (np.array([b"\xc3\xbc", b"\xff\xfe", b""], "O"), '["\u00fc", <2 bytes>, ""]'),
        "INT8": (np.arange(-100, 100, dtype="i1"), "[-100, -99, -98, -97, -96, -95, \u2026, 94, 95, 96, 97, 98, 99]"),
    }
    tensors = [from_array(dtype, array) for dtype, (array, _) in given.items()]
    header = {
        "outputs": [
            {
                "name": each.name,
                "datatype": each.name,
                "shape": each.shape,
                "parameters": {"binary_data_size": each.nbytes},
            }
            for each in tensors
        ]
    }
    raw = base64.b64encode(b"".join(bytes(each.data) for each in tensors)).decode()
    script = f"""import("/ui/files/tensors.js").then((tensors) => {{
        const raw = Uint8Array.from(atob("{raw}"), (each) => each.charCodeAt(0)).buffer;
        return tensors.outputs({json.dumps(header)}, raw).map(tensors.tensorText);
    }})"""
    assert visit(endpoint).evaluate(script) == [text for _, text in given.values()]


def test_numbers_are_sent_as_they_are_written_in_the_shape_that_the_model_states(
    endpoint: Endpoint, visit: Callable[..., Browser]
) -> None:
    cases = [
        ("[9007199254740993]", [-1], [1], "[9007199254740993]"),
        ("[[1, 2], [3, 4]]", [-1, 2], [2, 2], "[[1, 2], [3, 4]]"),
        ("[1, 2, 3, 4]", [-1, 2], [2, 2], "[1, 2, 3, 4]"),
        ("7", [], [], "[7]"),
        ("zeros(1, 3)", [-1, 3], [1, 3], "[0,0,0]"),
    ]
    browser = visit(endpoint)
    for text, stated, shape, data in cases:
        given = {"name": "x", "datatype": "INT64", "shape": stated}
        script = f'import("/ui/files/tensors.js").then((t) => t.numbers({json.dumps(text)}, {json.dumps(given)}))'
        assert browser.evaluate(script) == {"shape": shape, "data": data}


def test_a_dialog_that_is_opened_again_at_once_keeps_its_own_answer(
    endpoint: Endpoint, visit: Callable[..., Browser]
) -> None:
    browser = visit(endpoint)
    given = '{title: "t", text: "t", verb: "Do", places: [["cpu", "cpu"]]}'
    chosen = browser.evaluate(
        "import('/ui/files/dialogs.js').then(async ({confirm}) => {"
        f"confirm({given}); const dialog = document.getElementById('confirm'); dialog.close();"
        f"const wanted = confirm({given}); await new Promise((go) => setTimeout(go, 100));"
        "dialog.querySelector('form').requestSubmit(); return (await wanted)?.place ?? null; })"
    )
    assert chosen == "cpu"


def test_a_transfer_is_shown_while_it_runs(daemon: Daemon, endpoint: Endpoint, visit: Callable[..., Browser]) -> None:
    from file_server import file_server

    with file_server() as server:
        served = server.serve("/models/large.safetensors", bytes(8 << 20), bytes_per_s=1e6)
        address = f"{server.url}/models/large.safetensors"
        with admin(daemon.config.runtime_dir) as door:
            door.add({"name": "large", "artifact": {"uri": address}}, lazy=True)
        opened = daemon.store.load("large")
        browser = visit(endpoint)
        browser.wait("document.getElementById('transfers').textContent.includes('8.0 MiB')")
        shown = browser.evaluate("document.getElementById('transfers').textContent")
        assert f"Fetching {address}" in shown
        assert not browser.evaluate("document.getElementById('transfers-section').hidden")
        served.bytes_per_s = None
        assert opened.done(60.0)  # its bytes are no safetensors, which is another matter
        browser.wait("document.getElementById('transfers-section').hidden")
