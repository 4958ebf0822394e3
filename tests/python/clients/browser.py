"""Headless Chromium through its debugging pipe: opens a page, runs JavaScript in it, waits for something to be true."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
_PATIENCE_S = 60.0  # the first page takes 1 s alone, and far more on a machine that has other work


class Browser:
    """One tab. `problems` are its console errors and uncaught exceptions."""

    def __init__(self) -> None:
        program = next(filter(None, map(shutil.which, NAMES)), None)
        assert program, f"expected one of {', '.join(NAMES)} on PATH (scripts/clients.sh installs the first)"
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._to, self._from = os.pipe(), os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={self._profile.name}"]
        # The protocol wants file descriptors 3 and 4.
        command = f'exec "$@" 3<&{self._to[0]} 4>&{self._from[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", program, *options, "about:blank"],
            pass_fds=(self._to[0], self._from[1]),
            stderr=subprocess.DEVNULL,
        )
        os.close(self._to[0])
        os.close(self._from[1])
        self._messages = os.fdopen(self._from[0], "rb")
        self._ids = 0
        self.problems: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Page", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._to[1])
        self._messages.close()
        self._profile.cleanup()

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> Any:
        """The first true value of the expression."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (value := self.run(condition)):
            assert time.monotonic() < deadline, f"{condition} did not become true in {_PATIENCE_S} s"
            time.sleep(0.05)
        return value

    def type(self, selector: str, text: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press_enter(self) -> None:
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        self.call("Input.dispatchKeyEvent", type="keyDown", **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def prefer(self, scheme: str) -> None:
        """light or dark"""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, self._session, **parameters)

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._ids += 1
        message = {"id": self._ids, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self._to[1], json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == self._ids:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(event["params"]["exceptionDetails"]))
            case "Log.entryAdded" if event["params"]["entry"]["level"] == "error":
                self.problems.append(json.dumps(event["params"]["entry"]))

    def _read(self) -> bytes:
        data = bytearray()
        while (byte := self._messages.read(1)) != b"\0":
            assert byte, f"the browser ended with status {self._process.wait()}"
            data += byte
        return bytes(data)
