"""`quaver serve` as a child process, for tests and for the soak."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from quaver.errors import BadInputError

_SERVING = re.compile(r"serving .* at (http://\S+)")
_LAST_LINES = 20


class LocalServer:
    """Context manager: starts on a free port and waits until the server listens; ends it with SIGTERM, which drains."""

    def __init__(self, model: Path, *flags: object) -> None:
        command = [sys.executable, "-m", "quaver", "serve", "--model", model, "--port", 0, *flags]
        self._process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
        self._lines: list[str] = []
        self.url = self._wait_for_url()
        self._reader = threading.Thread(target=self._read_on, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server last wrote to stderr."""
        return "".join(self._lines[-_LAST_LINES:])

    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        """Its exit code."""
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        self._process.stderr.close()
        return self._process.returncode

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024

    def _wait_for_url(self) -> str:
        for line in self._process.stderr:
            self._lines.append(line)
            if match := _SERVING.search(line):
                return match[1]
        raise BadInputError(f"quaver serve ended with status {self._process.wait()}: {self.log.strip()}")

    def _read_on(self) -> None:
        for line in self._process.stderr:
            self._lines.append(line)
