"""Clients that go, engines that fail, several engines, and the end of the server."""

from __future__ import annotations

import json
import math
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_engine import FakeEngine, Output, logprobs
from serving import Serve
from sse import events, stream

COMPLETIONS = "/v1/completions"
ENDLESS = {"prompt": "hello", "max_tokens": 200}


def talkative(step_s: float = 0.005, **options: Any) -> FakeEngine:
    """Says 200 tokens; a second in all, if a step takes no longer than usual."""
    return FakeEngine(lambda *_: [5] * 200, step_s=step_s, **options)


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def idle(engine: FakeEngine) -> bool:
    stats = engine.stats()
    return stats.num_running == stats.num_waiting == 0


@pytest.mark.parametrize("chunks", [0, 1, 5])
def test_closed_streams_end_at_once(serve: Serve, chunks: int) -> None:
    """B35: far before the 4 s that the texts would take."""
    engine = talkative(step_s=0.02)
    client = serve(engine)
    for _ in range(3):
        with client.stream("POST", COMPLETIONS, json={**ENDLESS, "stream": True, "n": 2}) as response:
            received = events(response)
            for _ in range(chunks):
                next(received)
        eventually(lambda: idle(engine), 2.0)
    assert len(engine.aborted) == 6
    assert client.post(COMPLETIONS, json={**ENDLESS, "max_tokens": 1}).status_code == 200


class HeldEngine(FakeEngine):
    """Does a step only when it is let."""

    def __init__(self, **options: Any) -> None:
        super().__init__(lambda *_: [5] * 200, **options)
        self.steps = threading.Semaphore(0)

    def wait(self, timeout_s: float) -> list[Output]:
        return super().wait(timeout_s) if self.steps.acquire(timeout=timeout_s) else []


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("num_pages", [1, 8])
def test_the_engine_is_told_before_another_step(serve: Serve, streaming: bool, steps: int, num_pages: int) -> None:
    """B35: three choices, all running or two of them waiting, after 0, 1 and 3 tokens. The client goes while a step is
    held; all of them end although it never does."""
    engine = HeldEngine(num_pages=num_pages)
    client = serve(engine)
    body = json.dumps({**ENDLESS, "stream": streaming, "n": 3}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        connection.sendall(head + body)
        eventually(lambda: len(engine.requests) == 3)
        for _ in range(steps):
            engine.steps.release()
        eventually(lambda: engine.stats().generated_tokens_total == steps * min(3, num_pages))
    eventually(lambda: len(engine.aborted) == 3 and idle(engine))
    assert engine.stats().generated_tokens_total == steps * min(3, num_pages)
    assert engine.stats().num_free_pages == num_pages


def test_closed_requests_that_wait_in_the_queue(serve: Serve) -> None:
    """B35: one page, so the second request waits; not streaming, so nothing was sent yet."""
    engine = talkative(step_s=0.02, num_pages=1)
    client = serve(engine)
    with client.stream("POST", COMPLETIONS, json={**ENDLESS, "stream": True}) as running:
        received = events(running)  # an iterator that is dropped closes its connection, sooner or later
        next(received)
        for _ in range(2):
            with pytest.raises(httpx2.ReadTimeout):
                client.post(COMPLETIONS, json=ENDLESS, timeout=0.1)
            eventually(lambda: engine.stats().num_waiting == 0, 2.0)
    eventually(lambda: idle(engine), 2.0)
    assert len(engine.aborted) >= 2


def test_reset_connections(serve: Serve) -> None:
    """B35: a socket that is closed with unread data resets the connection."""
    engine = talkative(step_s=0.02)
    client = serve(engine)
    body = b'{"prompt":"hello","max_tokens":200,"stream":true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for wait_s in (0.0, 0.05):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
            connection.sendall(head + body)
            time.sleep(wait_s)
        eventually(lambda: idle(engine), 2.0)
    eventually(lambda: len(engine.requests) == len(engine.aborted) == 2, 2.0)


def test_stop_strings_end_the_request(serve: Serve) -> None:
    engine = talkative()  # its token is "e"
    answer = serve(engine).post(COMPLETIONS, json={**ENDLESS, "stop": "eeee"}).json()
    assert answer["choices"][0]["text"] == "" and answer["usage"]["completion_tokens"] == 4
    assert len(engine.aborted) == 1 and engine.stats().generated_tokens_total < 100


def test_all_choices_or_none(serve: Serve) -> None:
    """One impossible prompt among several: nothing is left running."""
    engine = talkative()
    client = serve(engine)
    answer = client.post(COMPLETIONS, json={"prompt": [[5], [300]], "stream": True})
    assert answer.status_code == 400 and "prompt 300" in answer.json()["error"]["message"]
    eventually(lambda: idle(engine))
    assert len(engine.aborted) == 1


def test_requests_go_to_the_least_loaded(serve: Serve) -> None:
    engines = [talkative(), talkative(), talkative()]
    client = serve(*engines)
    client.post(COMPLETIONS, json={**ENDLESS, "n": 8, "max_tokens": 5})
    assert sorted(len(engine.requests) for engine in engines) == [2, 3, 3]


def test_engine_failure(serve: Serve) -> None:
    """Its requests end with a 500, the others' go on, /health tells the truth."""
    engines = [talkative(0.02), talkative(0.02)]
    client = serve(*engines)
    answers: list[httpx2.Response] = []

    def post() -> None:
        answers.append(client.post(COMPLETIONS, json=ENDLESS))

    with client.stream("POST", COMPLETIONS, json={**ENDLESS, "stream": True}) as streaming:  # on the first engine
        received = events(streaming)
        next(received)
        threads = [threading.Thread(target=post) for _ in range(3)]  # second, first, second
        for count, thread in enumerate(threads, start=2):
            thread.start()
            eventually(lambda count=count: sum(len(engine.requests) for engine in engines) == count)
        engines[0].break_down("out of memory")
        *_, last = received
    for thread in threads:
        thread.join()
    assert last["error"]["message"] == "engine: out of memory" and last["error"]["code"] == "engine_failed"
    assert sorted(answer.status_code for answer in answers) == [200, 200, 500]
    (failed,) = (answer for answer in answers if answer.status_code == 500)
    assert failed.json()["error"] == {
        "message": "engine: out of memory", "type": "server_error", "param": None, "code": "engine_failed",
    }  # fmt: skip

    health = client.get("/health")
    assert health.status_code == 200 and health.json() == {
        "status": "degraded",
        "engines": [{"engine": 0, "status": "failed", "reason": "out of memory"}, {"engine": 1, "status": "ok"}],
    }
    assert client.post(COMPLETIONS, json={**ENDLESS, "max_tokens": 2}).status_code == 200
    metrics = client.get("/metrics").text
    assert 'quaver:engine_up{engine="0"} 0.0' in metrics
    assert 'quaver:request_finished_total{reason="error"} 2.0' in metrics

    engines[1].break_down("a CUDA error")
    refused = client.post(COMPLETIONS, json=ENDLESS)
    assert refused.status_code == 503 and "a CUDA error" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"].isdigit()
    eventually(lambda: client.get("/health").json()["status"] == "failed")
    assert client.get("/health").status_code == 503


def test_a_poller_that_raises_fails_its_requests(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = talkative()
    client = serve(engine)

    def broken(_: float) -> list[Any]:
        raise RuntimeError("lost")

    monkeypatch.setattr(engine, "wait", broken)
    answer = client.post(COMPLETIONS, json=ENDLESS)
    assert answer.status_code in (500, 503) and "lost" in answer.json()["error"]["message"]
    assert client.get("/health").status_code == 503


def test_a_fault_of_the_server_is_a_500(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody foresaw: no details for the client but in the log, nothing left running, the connection stays open
    for the next request."""
    engine = talkative()
    client = serve(engine)

    def add(*_: Any, **__: Any) -> None:
        raise TypeError("secret")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "add", add)
        for _ in range(20):  # a connection closed behind the answer fails one of them
            answer = client.post(COMPLETIONS, json=ENDLESS, headers={"X-Request-Id": "faulty"})
            assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
            assert "secret" not in answer.text
        assert "request faulty: POST /v1/completions failed" in caplog.text and "secret" in caplog.text
    assert client.post(COMPLETIONS, json={**ENDLESS, "max_tokens": 1}).status_code == 200


@contextmanager
def server_process(
    model_dir: Path, step_s: float, *, shutdown_timeout_s: float = math.inf, stalled_client_s: float = 60
) -> Iterator[tuple[subprocess.Popen[str], httpx2.Client]]:
    script = Path(__file__).with_name("fake_server.py")
    command = [sys.executable, *map(str, (script, model_dir, step_s, shutdown_timeout_s, stalled_client_s))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stderr.readline()
            url = re.search(r"serving tiny at (http://127\.0\.0\.1:\d+)$", line)
            assert url, line + process.stderr.read()
            with httpx2.Client(base_url=url[1], timeout=30) as client:
                yield process, client
        finally:
            process.kill()


def test_sigterm_drains(tiny_dir: Path) -> None:
    """Running and waiting requests finish, new ones get 503, exit code 0."""
    with server_process(tiny_dir, 0.02) as (process, client):
        with client.stream("POST", COMPLETIONS, json={**ENDLESS, "stream": True}) as running:
            received = events(running)
            next(received)
            process.send_signal(signal.SIGTERM)
            eventually(lambda: client.get("/health").json()["status"] == "draining")
            assert client.get("/health").status_code == 503
            refused = client.post(COMPLETIONS, json=ENDLESS)
            assert refused.status_code == 503 and refused.headers["retry-after"].isdigit()
            assert refused.json()["error"]["message"] == "server: it is shutting down"
            assert len(list(received)) == 199
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


def test_shutdown_timeout(tiny_dir: Path) -> None:
    """What would take 20 s ends with an error, for streams and others; exit code 0."""
    with server_process(tiny_dir, 0.1, shutdown_timeout_s=0.3) as (process, client):
        answers: list[httpx2.Response] = []
        thread = threading.Thread(target=lambda: answers.append(client.post(COMPLETIONS, json=ENDLESS)))
        with client.stream("POST", COMPLETIONS, json={**ENDLESS, "stream": True}) as running:
            received = events(running)
            next(received)
            thread.start()
            eventually(lambda: 'num_requests_running{engine="0"} 2.0' in client.get("/metrics").text)
            process.send_signal(signal.SIGTERM)
            *_, last = received
        thread.join()
        assert process.wait(15) == 0
        assert process.stderr.read() == "note: --shutdown-timeout 0.3 cuts off 2 requests\n"
    assert last["error"]["message"] == "server: it is shutting down" and last["error"]["code"] == "unavailable"
    assert [answer.status_code for answer in answers] == [503] and answers[0].json()["error"] == last["error"]


@pytest.mark.parametrize("limits", [{"stalled_client_s": 1.0}, {"shutdown_timeout_s": 0.1}])
def test_a_client_that_does_not_read_holds_nothing_up(tiny_dir: Path, limits: dict[str, float]) -> None:
    """It gets 8 MB and takes none of them."""
    body = json.dumps({**ENDLESS, "n": 128, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with server_process(tiny_dir, 0.02, **limits) as (process, client), socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect((client.base_url.host, client.base_url.port))
        stalled.sendall(head + body)
        for running in (128, 0):  # all has been generated, or was ended with the connection
            eventually(lambda n=running: f'num_requests_running{{engine="0"}} {n}.0' in client.get("/metrics").text, 30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_at_once(tiny_dir: Path, number: signal.Signals) -> None:
    with server_process(tiny_dir, 1.0) as (process, client):
        thread = threading.Thread(
            target=lambda: pytest.raises(httpx2.HTTPError, client.post, COMPLETIONS, json=ENDLESS)
        )
        thread.start()
        eventually(lambda: 'num_requests_running{engine="0"} 1.0' in client.get("/metrics").text)
        process.send_signal(number)
        eventually(lambda: client.get("/health").status_code == 503)
        process.send_signal(number)
        assert process.wait(30) == 128 + number  # draining would take 200 s
        thread.join()


def test_many_streams_at_once(serve: Serve) -> None:
    """Each gets its own tokens, none is lost."""
    engine = FakeEngine(lambda prompt, _: [prompt[-1]] * 40, num_pages=64)
    client = serve(engine)
    received: dict[int, list[float]] = {}

    def run(token: int) -> None:
        chunks = stream(client, COMPLETIONS, {"prompt": [2, token], "max_tokens": 40, "logprobs": 0})
        received[token] = [chunk["choices"][0]["logprobs"]["token_logprobs"][0] for chunk in chunks]

    threads = [threading.Thread(target=run, args=(token,)) for token in range(200, 232)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert received == {token: [logprobs(token, 0).logprob] * 40 for token in range(200, 232)}
