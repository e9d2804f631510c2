"""A driver for a real browser: Chromium's own protocol over two pipes, without another package."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_S = 240.0


def find() -> str | None:
    """The browser: SEGTRAIN_BROWSER, or the first of the usual names."""
    named = os.environ.get("SEGTRAIN_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One headless page of ``width`` x ``height`` CSS pixels.

    Commands go to descriptor 3 of the browser, answers come from 4.
    """

    def __init__(
        self, executable: str, profile: Path, width: int = 1280, height: int = 900
    ) -> None:
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        command = (
            f'exec 3<&{to_read} 4>&{to_write}; exec "$0" "$@"',
            executable,
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            "about:blank",
        )
        self._process = subprocess.Popen(
            ["bash", "-c", *command],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.errors: list[str] = []  # exceptions and complaints of the page's console
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._from, 1 << 16) if ready else b""
            if not data:
                raise AssertionError("the browser does not answer")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        method, said = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(said["exceptionDetails"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.errors.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"][:200])

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.absolute().as_uri())
        end = time.monotonic() + PATIENCE_S
        name = json.dumps(path.absolute().as_uri())
        while not self.run(f"document.readyState === 'complete' && location.href === {name}"):
            assert time.monotonic() < end, "the page does not load"
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def place(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width and height of an element on the screen, scrolled to its middle."""
        found = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height] })()"
        )
        left, top, width, height = found
        return left, top, width, height

    def mouse(self, kind: str, x: float, y: float, clicks: int = 1) -> None:
        button = "none" if kind == "mouseMoved" else "left"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=clicks)

    def drag(self, selector: str, begin: float, end: float) -> None:
        """From one share of the element's width to another, at half of its height."""
        left, top, width, height = self.place(selector)
        y = top + height / 2
        self.mouse("mouseMoved", left + begin * width, y)
        self.mouse("mousePressed", left + begin * width, y)
        for part in range(1, 6):
            x = left + (begin + (end - begin) * part / 5) * width
            self.call(
                "Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1
            )
        self.mouse("mouseReleased", left + end * width, y)

    def click(self, selector: str, clicks: int = 1) -> None:
        left, top, width, height = self.place(selector)
        for count in range(1, clicks + 1):
            self.mouse("mousePressed", left + width / 2, top + height / 2, count)
            self.mouse("mouseReleased", left + width / 2, top + height / 2, count)

    def prefer(self, scheme: str) -> None:
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def screenshot(
        self, path: Path, whole: bool = False, clip: dict[str, float] | None = None
    ) -> Path:
        extra: dict[str, Any] = {"clip": {**clip, "scale": 1}} if clip else {}
        shot = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **extra
        )
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def close(self) -> None:
        for end in (self._to, self._from):
            os.close(end)
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
