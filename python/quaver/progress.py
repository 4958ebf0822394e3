"""A progress bar on stderr for work that takes longer than two seconds, and nothing for work that does not."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any, Self

_PATIENCE_S = 2.0


class SlowTask:
    """Context manager. update(done, total) moves the bar; without it the bar only shows that work goes on."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._done, self._total = 0, 0
        self._bar: Any = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(_PATIENCE_S, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def update(self, done: int, total: int) -> None:
        with self._lock:
            self._done, self._total = done, total
            if self._bar is not None:
                self._bar.update(self._task, completed=done, total=total or None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            if self._bar is not None:
                self._bar.stop()

    def _show(self) -> None:
        from rich.console import Console  # 0.1 s, which work that is over by now never pays
        from rich.progress import Progress

        with self._lock:
            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._title, total=self._total or None, completed=self._done)
            self._bar.start()
