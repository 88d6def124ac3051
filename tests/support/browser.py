"""A headless browser, driven over its DevTools protocol through a pair of pipes: no driver, no packages."""

from __future__ import annotations

import base64
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from looking import wait_until

from trims.process.subreaper import adopt

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

#: `TRIMS_BROWSER` names another one; any of Chromium's family will do.
PROGRAM = os.environ.get("TRIMS_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)
_PATIENCE_S = 120.0
_KEYS = {
    "Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), " ": (32, " "), "ArrowLeft": (37, ""),
    "ArrowRight": (39, ""), "ArrowDown": (40, ""), "End": (35, ""),
}  # fmt: skip


class Chromium:
    """A browser's process, whose pages know nothing of each other. A context manager.

    Args:
        folder: For its profile.
    """

    def __init__(self, folder: Path) -> None:
        assert PROGRAM is not None
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
            "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-crash-reporter",
            f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        # The browser reads from descriptor 3 and writes to 4. It keeps its orphans, which `forked_starts` would adopt.
        command = f"exec {shlex.join([PROGRAM, *flags])} 3<&{theirs_in} 4>&{theirs_out}"
        self._process = subprocess.Popen(
            ["bash", "-c", command], pass_fds=(theirs_in, theirs_out), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(folder)}, preexec_fn=adopt,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0

    def call(self, method: str, session: str = "", errors: list[str] | None = None, **parameters: Any) -> Any:
        """One command of the protocol, and its answer; what the page of a session reports goes to `errors`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            if errors is None or answer.get("sessionId") != session:
                continue
            if answer["method"] == "Runtime.exceptionThrown":
                errors.append(str(answer["params"]["exceptionDetails"]))
            elif answer["method"] == "Log.entryAdded" and answer["params"]["entry"]["source"] == "security":
                errors.append(answer["params"]["entry"]["text"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], _PATIENCE_S)
            assert ready, "the browser does not answer"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)  # the browser ends with its pipe
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._from)
        self._await_others()

    def _await_others(self) -> None:
        """Wait for the browser's helpers, which write into the profile until they end."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                os.killpg(self._process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.01)
        os.killpg(self._process.pid, signal.SIGKILL)


class Browser:
    """One page in a context of its own: without cookies, cache or storage of other pages.

    Args:
        chromium: Where it is opened.
        width: Of the window in pixels.
    """

    def __init__(self, chromium: Chromium, width: int = 1400) -> None:
        self._chromium = chromium
        self._session = ""
        #: Errors that the page has reported: exceptions, and what its policy has blocked.
        self.errors: list[str] = []
        self._context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=self._context)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        found: dict[str, Any] = self._chromium.call(method, self._session, self.errors, **parameters)
        return found

    def save_to(self, folder: Path) -> None:
        """Have the page's downloads saved in a folder."""
        where = {"browserContextId": self._context, "behavior": "allow", "downloadPath": str(folder)}
        self._chromium.call("Browser.setDownloadBehavior", **where)

    def close(self) -> None:
        """Close the page, and forget what it has kept."""
        self._chromium.call("Target.disposeBrowserContext", browserContextId=self._context)

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window another size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page, also one that is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression holds."""
        try:
            wait_until(lambda: self.evaluate(f"Boolean({script})"), f"the page comes to: {script}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it says: {self.text()}") from error

    def text(self) -> str:
        """Return the text that can be read on the page."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def press(self, key: str) -> None:
        """One key, as from the keyboard."""
        code, text = _KEYS[key]
        named = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **named, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def write(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def tab_to(self, selector: str) -> None:
        """Press the Tab key until an element has the focus."""
        for _ in range(100):
            if self.evaluate(f"document.activeElement?.matches({json.dumps(selector)})"):
                return
            self.press("Tab")
        raise AssertionError(f"the Tab key does not reach {selector}")

    def picture(self, path: Path) -> None:
        """A screenshot of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))
