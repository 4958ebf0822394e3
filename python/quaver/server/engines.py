"""N engines behind one asyncio interface: requests go to the least loaded, outputs come back in batches, one a step.

Each engine has a thread that waits for outputs without the GIL and wakes the event loop once per step. Everything else
in this file runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from quaver.server.errors import RequestError, unavailable

_WAIT_S = 0.1  # how soon a poller notices that its engine failed or that it shall end


@dataclass
class EngineRequest:
    """The arguments of Engine.add."""

    prompt: list[int]
    params: dict[str, Any]


@dataclass
class Arrival:
    """An output of the engine for one request of a subscription."""

    index: int  # of the request in submit()
    output: Any
    time: float  # time.monotonic() when the step was over


class Subscription:
    """The outputs of the requests that one submit() queued."""

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []
        self._failure: RequestError | None = None
        self._news = asyncio.Event()
        self._live: dict[int, tuple[_Worker, int]] = {}  # by index

    async def next(self) -> list[Arrival]:
        """What came since the last call; waits for the first. Raises RequestError when an engine failed."""
        await self._news.wait()
        self._news.clear()
        arrivals, self._arrivals = self._arrivals, []
        if not arrivals and self._failure is not None:
            raise self._failure
        if self._failure is not None:
            self._news.set()
        return arrivals

    def abort(self, index: int) -> None:
        """Ends one request; no more of its outputs will come."""
        if index in self._live:
            worker, request_id = self._live.pop(index)
            worker.forget(request_id)
            worker.engine.abort(request_id)

    def close(self) -> None:
        """Ends whatever still runs."""
        for index in list(self._live):
            self.abort(index)

    def _add(self, index: int, worker: _Worker, request_id: int) -> None:
        self._live[index] = (worker, request_id)

    def _push(self, arrival: Arrival) -> None:
        if arrival.output.finish_reason is not None:
            self._live.pop(arrival.index, None)
        self._arrivals.append(arrival)
        self._news.set()

    def _fail(self, index: int, error: RequestError) -> None:
        self._live.pop(index, None)
        self._failure = error
        self._news.set()


class EnginePool:
    """Engines of the same model. start() needs a running event loop; close() ends all engines and threads."""

    def __init__(self, engines: Sequence[Any]) -> None:
        self._workers = [_Worker(index, engine) for index, engine in enumerate(engines)]
        self._ids = itertools.count(1)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        for worker in self._workers:
            worker.start(loop)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def submit(self, requests: Sequence[EngineRequest]) -> Subscription:
        """Queues all of the requests or none. Raises RequestError: 400 for what can never run, 503 without engines."""
        subscription = Subscription()
        try:
            for index, request in enumerate(requests):
                self._add(subscription, index, request)
        except BaseException:
            subscription.close()
            raise
        return subscription

    def end_all(self, error: RequestError) -> None:
        """Ends whatever still runs, with an error."""
        for worker in self._workers:
            for request_id in list(worker.live):
                worker.engine.abort(request_id)
            worker.end_all(error)

    def statuses(self) -> list[dict[str, Any]]:
        return [
            {"engine": worker.index, "status": "failed", "reason": worker.failure}
            if worker.failure
            else {"engine": worker.index, "status": "ok"}
            for worker in self._workers
        ]

    def stats(self) -> Iterator[tuple[int, Any, bool]]:
        """(engine, its EngineStats, whether it is healthy)"""
        for worker in self._workers:
            yield worker.index, worker.engine.stats(), not worker.failure

    def _add(self, subscription: Subscription, index: int, request: EngineRequest) -> None:
        while healthy := [worker for worker in self._workers if not worker.failure]:
            worker = min(healthy, key=lambda worker: len(worker.live))
            request_id = next(self._ids)
            try:
                worker.engine.add(request_id, request.prompt, **request.params)
            except ValueError as error:
                raise RequestError(str(error), param=str(error).split(" ", 1)[0]) from None
            except RuntimeError as error:
                worker.fail(worker.engine.failure() or str(error))
                continue
            worker.live[request_id] = (subscription, index)
            subscription._add(index, worker, request_id)
            return
        raise unavailable("; ".join(f"engine {worker.index}: {worker.failure}" for worker in self._workers))


class _Worker:
    """One engine, its live requests and the thread that waits for its outputs."""

    def __init__(self, index: int, engine: Any) -> None:
        self.index, self.engine = index, engine
        self.live: dict[int, tuple[Subscription, int]] = {}
        self.failure = ""
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread = threading.Thread(target=self._poll, args=(loop,), name=f"engine {self.index}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        if self._thread is not None:
            self._thread.join()
        self.engine.close()

    def forget(self, request_id: int) -> None:
        self.live.pop(request_id, None)

    def fail(self, reason: str) -> None:
        self.failure = self.failure or reason or "failed"
        self.end_all(_engine_failed(self.failure))

    def end_all(self, error: RequestError) -> None:
        live, self.live = self.live, {}
        for subscription, index in live.values():
            subscription._fail(index, error)

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        failure = ""
        while not self._closing and not failure:
            try:
                outputs = self.engine.wait(_WAIT_S)
                failure = "" if outputs else self.engine.failure()  # its last outputs come first
            except Exception as error:  # whatever it is, the requests must not wait for ever
                outputs, failure = [], str(error) or type(error).__name__
            try:
                if outputs:
                    loop.call_soon_threadsafe(self._deliver, outputs, time.monotonic())
                if failure:
                    loop.call_soon_threadsafe(self.fail, failure)
            except RuntimeError:
                return  # the loop is closed

    def _deliver(self, outputs: list[Any], now: float) -> None:
        for output in outputs:
            owner = self.live.get(output.request_id)
            if owner is None:
                continue  # aborted
            subscription, index = owner
            if output.finish_reason is not None:
                del self.live[output.request_id]
            if output.finish_reason == "error":
                subscription._fail(index, _engine_failed(output.error))
            else:
                subscription._push(Arrival(index, output, now))


def _engine_failed(reason: str) -> RequestError:
    return RequestError(f"engine: {reason}", status=500, code="engine_failed")
