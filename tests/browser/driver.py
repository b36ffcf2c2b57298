"""A real Chromium, driven by the W3C WebDriver protocol of Debian's chromedriver: no package of Python is needed."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

REQUEST_SECONDS = 60
WAIT_SECONDS = 20.0
KEYS = {"ArrowDown": "\ue015", "ArrowUp": "\ue013", "End": "\ue010", "Home": "\ue011", "Enter": "\ue007",
        "Escape": "\ue00c", "Tab": "\ue004", "ArrowRight": "\ue014", "PageDown": "\ue00f"}  # fmt: skip


def missing() -> str:
    """Which program is missing, and how to get it; empty where none is."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} missing: apt install chromium chromium-driver" if absent else ""


class Browser:
    """One window. Scripts are the body of a function, whose value is returned."""

    def __init__(self, port: int, session: str) -> None:
        self._port, self._session = port, session

    def open(self, address: str) -> None:
        self.call("POST", "url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.call("POST", "execute/sync", {"script": script, "args": arguments})

    def run_async(self, script: str, *arguments: Any) -> Any:
        """The script calls its last argument with the result."""
        return self.call("POST", "execute/async", {"script": script, "args": arguments})

    def press(self, *keys: str) -> None:
        """Names of KEYS, or characters, to whatever has the focus."""
        steps = [
            {"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")
        ]  # fmt: skip
        self.call("POST", "actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    def click(self, selector: str) -> None:
        element = self.call("POST", "element", {"using": "css selector", "value": selector})
        self.call("POST", f"element/{next(iter(element.values()))}/click", {})

    def wait(self, script: str, *arguments: Any, seconds: float = WAIT_SECONDS) -> Any:
        """Waits until the script's value is true, and returns the value. Raises TimeoutError."""
        return until(lambda: self.run(script, *arguments), f"the page: {script}", seconds)

    def size(self, width: int, height: int) -> None:
        self.call("POST", "window/rect", {"width": width, "height": height})

    def dark(self, dark: bool) -> None:
        """What the system prefers."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[feature])

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.call("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "screenshot")))

    def log(self) -> list[str]:
        """What the console said since the last call: errors of scripts, and what the page's policy refused."""
        return [str(entry["message"]) for entry in self.call("POST", "se/log", {"type": "browser"})]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return _call(self._port, method, f"/session/{self._session}/{path}", body)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Starts Chromium without a display, and ends it with all its processes."""
    with tempfile.TemporaryDirectory(prefix="gpushare-browser-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=output, stderr=output)
        try:
            port = until(lambda: _port(log.read_text()), "chromedriver")
            arguments = [
                "--headless=new",
                "--no-sandbox",
                "--disable-dev-shm-usage",
                f"--user-data-dir={folder}/profile",
            ]
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {"args": arguments},
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            made = _call(port, "POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            browser = Browser(port, made["sessionId"])
            try:
                yield browser
            finally:
                browser.call("DELETE", "")
        finally:
            driver.terminate()
            driver.wait(timeout=10)


def until(probe: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := probe()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)
    return value


def _port(log: str) -> int:
    words = log.partition("started successfully on port ")[2].partition(".")[0]
    return int(words) if words.isdigit() else 0


def _call(port: int, method: str, path: str, body: Any) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)
    try:
        connection.request(
            method, path.rstrip("/"), None if body is None else json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = json.loads(connection.getresponse().read())["value"]
    finally:
        connection.close()
    if isinstance(answer, dict) and "error" in answer:
        raise RuntimeError(f"{path}: {answer['error']}: {answer.get('message', '')}")
    return answer
