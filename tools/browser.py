"""A headless Chromium, driven through chromedriver's WebDriver protocol."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
CHROMEDRIVER = shutil.which("chromedriver")
ARGUMENTS = (
    "headless=new no-sandbox disable-dev-shm-usage disable-background-networking "
    "window-size=1000,760 "
    "use-angle=swiftshader enable-unsafe-swiftshader"  # WebGL without a graphics card
)


class Browser:
    """One window; every message on its console is kept in `console()`."""

    def __init__(self, port: int, profile: Path, more: Sequence[str] = ()) -> None:
        self._address = f"http://127.0.0.1:{port}"
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        arguments = [*ARGUMENTS.split(), *more, f"user-data-dir={profile}"]
        options = {"binary": CHROMIUM, "args": arguments}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        started = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{started['sessionId']}"
        self.call("timeouts", script=10_000, pageLoad=20_000)

    def _send(self, verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=verb
        )
        with self._open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def call(self, command: str, **values: Any) -> Any:
        return self._send("POST", f"{self._session}/{command}", values)

    def visit(self, page: Path) -> None:
        self.call("url", url=page.resolve().as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a JavaScript expression."""
        return self.call("execute/sync", script=f"return {script}", args=list(arguments))

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true, at most 10 seconds."""
        script = (
            "const done = arguments[0]; "
            "const look = () => { if (%s) done(true); else setTimeout(look, 20); }; look();"
        )
        self.call("execute/async", script=script % condition, args=[])

    def mouse(self, x: float, y: float) -> None:
        move = {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}
        self.call("actions", actions=[{"type": "pointer", "id": "mouse", "actions": [move]}])

    def drag(self, places: list[tuple[float, float]], key: str | None = None) -> None:
        """Press at the first place, move along the others and let go, with a key held down; a click
        for one place.
        """
        moves = [
            {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)} for x, y in places
        ]
        down, up = ({"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp"))
        if key:
            self.call(
                "actions",
                actions=[
                    {"type": "key", "id": "keys", "actions": [{"type": "keyDown", "value": key}]}
                ],
            )
        self.call(
            "actions",
            actions=[
                {"type": "pointer", "id": "mouse", "actions": [moves[0], down, *moves[1:], up]}
            ],
        )
        if key:
            self.call(
                "actions",
                actions=[
                    {"type": "key", "id": "keys", "actions": [{"type": "keyUp", "value": key}]}
                ],
            )

    def screenshot(self) -> np.ndarray:
        """The window as it is seen: red, green, blue [height, width, 3]."""
        png = base64.b64decode(self._send("GET", f"{self._session}/screenshot"))
        return np.array(Image.open(io.BytesIO(png)).convert("RGB"))

    def scroll(self, x: float, y: float, by: int) -> None:
        turn = {
            "type": "scroll",
            "duration": 0,
            "x": round(x),
            "y": round(y),
            "deltaX": 0,
            "deltaY": by,
        }
        self.call("actions", actions=[{"type": "wheel", "id": "wheel", "actions": [turn]}])

    def press(self, key: str) -> None:
        strokes = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self.call("actions", actions=[{"type": "key", "id": "keys", "actions": strokes}])

    def frame(self, number: int | None) -> None:
        """Go into a frame of the page; None: back out."""
        self.call("frame", id=number)

    def console(self) -> list[str]:
        return [
            line["message"]
            for line in self.call("se/log", type="browser")
            if line["level"] != "DEBUG"
        ]

    def close(self) -> None:
        self._send("DELETE", self._session)


@contextmanager
def opened(profile: Path, more: Sequence[str] = ()) -> Iterator[Browser]:
    """Yield a browser with an empty profile folder and more arguments; its processes end
    afterwards.
    """
    assert CHROMEDRIVER is not None
    process = subprocess.Popen([CHROMEDRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = next(
            filter(
                None, (re.search(r"successfully on port (\d+)", line) for line in process.stdout)
            )
        )
        window = Browser(int(address[1]), profile, more)
        yield window
        window.close()
    finally:
        process.terminate()
        process.wait(10)
