"""A headless Chromium that is driven through its DevTools protocol, over two pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_CODES = {"ArrowRight": 39, "Escape": 27}
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            "--disable-dev-shm-usage", "--remote-debugging-pipe")  # fmt: skip


class Browser:
    """One page of a browser; ``problems`` are its exceptions, logged errors and requests to other addresses."""

    def __init__(self, profile: Path) -> None:
        here_read, there_write = os.pipe()
        there_read, here_write = os.pipe()
        words = [str(PROGRAM), *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        # Chromium reads its commands from descriptor 3 and answers on descriptor 4
        script = f'exec "$@" 3<&{there_read} 4>&{there_write}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, "bash", *words], pass_fds=(there_read, there_write),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(there_read)
        os.close(there_write)
        self._read, self._write, self._rest, self._count = here_read, here_write, b"", 0
        self._session: str | None = None
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(20)
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one command."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, page: Path) -> None:
        """Load a file and wait until its script has run."""
        self.problems.clear()
        self.call("Page.navigate", url=page.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def run(self, code: str) -> Any:
        """The value of an expression on the page."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """A click of the mouse into the middle of an element."""
        place = self._place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def hover(self, selector: str) -> None:
        """Move the mouse to the middle of an element."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **self._place(selector))

    def _place(self, selector: str) -> dict[str, float]:
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        middle = "(r => [r.x + r.width / 2, r.y + r.height / 2])"
        x, y = self.run(f"{middle}(document.querySelector({selector!r}).getBoundingClientRect())")
        return {"x": x, "y": y}

    def key(self, name: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=_CODES.get(name, 0)
            )

    def media(self, **features: str) -> None:
        """Emulate features such as ``prefers_color_scheme="dark"``, or ``media="print"``."""
        named = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items() if k != "media"]
        self.call("Emulation.setEmulatedMedia", media=features.get("media", ""), features=named)

    def screenshot(self, path: Path, width: int = 1280) -> bytes:
        """A picture of the whole page."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        height = self.run("document.documentElement.scrollHeight")
        self.call("Emulation.setDeviceMetricsOverride", **{**size, "height": height})
        picture = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(picture)
        return picture

    def _next(self, seconds: float = 60) -> dict[str, Any]:
        """The next message of the browser."""
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], max(0, end - time.monotonic()))[0], "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return dict(message)

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown" or (method == "Runtime.consoleAPICalled" and event["type"] == "error"):
            self.problems.append(json.dumps(event))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.problems.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not event["request"]["url"].startswith(
            ("file:", "about:", "data:")
        ):
            self.problems.append(f"request of {event['request']['url']}")
