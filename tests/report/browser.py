"""Headless Chromium over the DevTools pipe: the standard library is enough."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page; `events` collects whatever it reported."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        own_in, their_out = os.pipe()
        their_in, own_out = os.pipe()

        def pipes() -> None:
            """The browser reads from descriptor 3 and writes to 4."""
            reading, writing = os.dup(their_in), os.dup(their_out)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            command,
            preexec_fn=pipes,  # noqa: PLW1509
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        self.reader, self.writer = own_in, own_out
        self.buffer, self.number, self.session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(30)
        os.close(self.reader)
        os.close(self.writer)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        return self.wait(lambda found: found.get("id") == self.number).get("result", {})

    def wait(self, wanted: Any, seconds: float = 60.0) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            while b"\0" in self.buffer:
                text, self.buffer = self.buffer.split(b"\0", 1)
                found = json.loads(text)
                if "method" in found:
                    self.events.append(found)
                if wanted(found):
                    assert "error" not in found, found
                    return dict(found)
            if select.select([self.reader], [], [], 1.0)[0]:
                self.buffer += os.read(self.reader, 1 << 20)
        raise AssertionError("the browser did not answer")

    def open(self, path: Path) -> None:
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait(lambda found: found.get("method") == "Page.loadEventFired")

    def width(self, pixels: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=pixels, height=900, deviceScaleFactor=1, mobile=False)

    def value(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def press_tab(self) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def screenshot(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def roles(self) -> list[tuple[str, str]]:
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
