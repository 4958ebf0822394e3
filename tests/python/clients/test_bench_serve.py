"""`quaver bench serve` against a server whose delays are known."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quaver.bench.prompts import LocalCodec, ServerCodec, random_prompts
from quaver.bench.server_api import ServerApi
from quaver.cli import main
from quaver.errors import BadInputError
from scripted_server import DONE, FakeServer, one_token_each, serving, text_chunk, usage_chunk


def bench(fake: FakeServer, tmp_path: Path, *arguments: object, status: int = 0) -> list[dict[str, Any]]:
    out = tmp_path / "result.json"
    common = ["--base-url", fake.url, "--random-input-len", 20, "--random-output-len", 5, "--save-result", out]
    assert main([str(part) for part in ("bench", "serve", *common, *arguments)]) == status
    return json.loads(out.read_text())["runs"]


def test_the_figures_are_the_servers_delays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeServer(script=one_token_each(gap=0.04, first=0.15))) as fake:
        (run,) = bench(fake, tmp_path, "--num-prompts", 8, "--max-concurrency", 4, "--num-warmups", 2)
    assert run["completed"] == 8 and run["failed"] == 0 and run["notes"] == []
    assert run["total_input_tokens"] == 8 * 20 and run["total_output_tokens"] == 8 * 5
    slack = 250  # ms that a busy machine may add; a sleep is never shorter
    assert 150 <= run["median_ttft_ms"] <= 150 + slack
    assert 39 <= run["median_itl_ms"] <= 40 + slack
    assert 39 <= run["median_tpot_ms"] <= 40 + slack
    assert 309 <= run["median_e2el_ms"] <= 310 + 2 * slack
    assert run["median_e2el_ms"] == pytest.approx(run["median_ttft_ms"] + 4 * run["median_tpot_ms"], rel=0.25)
    assert 2 * 0.31 <= run["duration"] <= 2 * 0.31 + 2  # two rounds of four; warm-ups are not in it
    assert run["output_throughput"] == pytest.approx(40 / run["duration"])
    assert fake.most_running == 4 and len(fake.bodies) == 10
    assert len(fake.peers) == 4  # one keep-alive connection each
    table = capsys.readouterr().out
    assert all(word in table for word in ("TTFT p99, ms", "TPOT mean, ms", "E2EL median, ms", "output tokens/s", "160"))


def test_requests_are_those_of_vllm(tmp_path: Path) -> None:
    with serving(FakeServer()) as fake:
        bench(fake, tmp_path, "--num-prompts", 3)
        body = fake.bodies[0]
        prompts = {request["prompt"] for request in fake.bodies}
        assert len(prompts) == 3 and all(len(prompt) == 19 for prompt in prompts)
        del body["prompt"]
        assert body == {"model": "fake", "max_tokens": 5, "temperature": 0.0, "repetition_penalty": 1.0, "stream": True,
                        "stream_options": {"include_usage": True}, "ignore_eos": True, "logprobs": None}  # fmt: skip


def test_chat_requests(tmp_path: Path) -> None:
    with serving(FakeServer(script=lambda _: [text_chunk("a"), usage_chunk(5), DONE])) as fake:
        bench(fake, tmp_path, "--num-prompts", 1, "--backend", "openai-chat", "--no-ignore-eos")
        (body,) = fake.bodies
    (message,) = body["messages"]
    assert message["role"] == "user" and message["content"][0]["type"] == "text"
    assert body["max_completion_tokens"] == 5 and body["ignore_eos"] is False and "prompt" not in body


def test_failures_are_counted_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def script(_: dict[str, Any]) -> list[float | bytes]:
        which = len(fake.bodies)
        if which == 2:
            return [text_chunk("a"), b""]  # dies in the middle
        if which == 3:
            return [text_chunk("a"), b'data: {"error": {"message": "step failed"}}\n\n']
        return [text_chunk("a"), usage_chunk(1), DONE]

    with serving(FakeServer(script=script)) as fake:
        (run,) = bench(fake, tmp_path, "--num-prompts", 4, "--max-concurrency", 1, status=1)
    assert (run["completed"], run["failed"], run["total_output_tokens"]) == (2, 2, 2)
    assert len(run["errors"]) == 2 and any("step failed" in error for error in run["errors"])
    assert "2 answers did not have the length" in run["notes"][0]
    output = capsys.readouterr().out
    assert output.count("failed: ") == 2


def test_a_server_that_refuses(tmp_path: Path) -> None:
    with serving(FakeServer(status=503)) as fake:
        (run,) = bench(fake, tmp_path, "--num-prompts", 2, status=1)
    assert run["completed"] == 0 and run["failed"] == 2 and run["errors"] == ["HTTP 503: no room"]


def test_no_usage(tmp_path: Path) -> None:
    """Then the tokenizer counts, as in vLLM."""
    with serving(FakeServer(script=lambda _: [text_chunk("abc"), text_chunk("de"), DONE])) as fake:
        (run,) = bench(fake, tmp_path, "--num-prompts", 1)
    assert run["total_output_tokens"] == 5


def test_a_connection_closed_while_idle_is_opened_again(tmp_path: Path) -> None:
    """A server may close a connection after any answer."""
    with serving(FakeServer(closes=True)) as fake:
        (run,) = bench(fake, tmp_path, "--num-prompts", 3, "--max-concurrency", 1)
    assert run["completed"] == 3 and len(fake.peers) == 3


def test_several_concurrencies_and_a_plot(tmp_path: Path) -> None:
    plot = tmp_path / "curve.svg"
    with serving(FakeServer(script=one_token_each(gap=0.01, first=0.02))) as fake:
        runs = bench(fake, tmp_path, "--num-prompts", "3x", "--max-concurrency", "1,4", "--plot", plot)
    assert [run["max_concurrency"] for run in runs] == [1, 4]
    assert [run["completed"] for run in runs] == [3, 12]
    assert runs[1]["output_throughput"] > runs[0]["output_throughput"]
    assert plot.read_text().startswith("<?xml")


def test_the_request_rate(tmp_path: Path) -> None:
    with serving(FakeServer()) as fake:
        (run,) = bench(fake, tmp_path, "--num-prompts", 10, "--request-rate", 20)
    assert 0.45 <= fake.starts[-1] - fake.starts[0] <= 3
    assert run["duration"] >= 0.5


@pytest.mark.parametrize(("arguments", "message"), [
    (["--base-url", "localhost:1"], "--base-url localhost:1"),
    (["--base-url", "http://127.0.0.1:9"], "http://127.0.0.1:9/v1/models"),
    (["--num-prompts", "0"], "0: expected 1 or more"),
    (["--num-prompts", "4x"], "--max-concurrency"),
    (["--request-rate", "0"], "above 0"),
    (["--random-input-len", "1"], "--random-input-len 1: expected at least 2"),
    (["--random-range-ratio", "1"], "--random-range-ratio 1.0"),
    (["--percentile-metrics", "ttft,latency"], "latency: expected ttft"),
    (["--metric-percentiles", "101"], "percentiles from 0 to 100"),
])  # fmt: skip
def test_bad_options(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeServer()) as fake:
        command = ["bench", "serve", "--base-url", fake.url, *arguments]
        try:
            assert main(command) == 2
        except SystemExit as ended:
            assert ended.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and fake.bodies == []


def test_prompts_have_exactly_the_tokens_asked_for(model_dir: Path) -> None:
    """Text of ids, re-encoded by the tokenizer that the server uses, <bos> included."""
    codec = LocalCodec(model_dir)
    prompts = random_prompts(codec, 8, input_len=200, output_len=40, range_ratio=0.5, seed=3)
    for prompt in prompts:
        assert codec.prefix + codec.encode(prompt.text) == prompt.ids
        assert 100 <= prompt.input_len <= 300 and 20 <= prompt.output_len <= 60
    assert len({prompt.input_len for prompt in prompts}) > 4
    assert len({tuple(prompt.ids[:3]) for prompt in prompts}) == 8  # no shared prefix
    again = random_prompts(codec, 8, input_len=200, output_len=40, range_ratio=0.5, seed=3)
    other = random_prompts(codec, 8, input_len=200, output_len=40, range_ratio=0.5, seed=4)
    assert prompts == again != other
    fixed = random_prompts(codec, 2, input_len=1000, output_len=1, range_ratio=0, seed=0)
    assert [prompt.input_len for prompt in fixed] == [1000] * 2


def test_prompts_from_the_servers_tokenizer() -> None:
    with serving(FakeServer()) as fake:
        codec = ServerCodec(ServerApi(fake.url, ""), "fake")
        (prompt,) = random_prompts(codec, 1, input_len=50, output_len=1, range_ratio=0, seed=0)
    assert codec.prefix == [0] and prompt.input_len == 50 and len(prompt.text) == 49


class _Shrinking:
    """A tokenizer whose text never gives the number of tokens asked for."""

    prefix: list[int] = []  # noqa: RUF012

    def encode(self, text: str) -> list[int]:
        return [0] * (len(text) // 2)

    def decode(self, ids: list[int]) -> str:
        return "a" * len(ids)

    def random_ids(self, count: int, rng: np.random.Generator) -> list[int]:  # noqa: ARG002
        return [0] * count


def test_a_tokenizer_that_cannot_give_the_length_is_an_error() -> None:
    with pytest.raises(BadInputError, match="exactly 10 tokens"):
        random_prompts(_Shrinking(), 1, input_len=10, output_len=1, range_ratio=0, seed=0)


def test_a_closed_connection_does_not_end_the_process() -> None:
    """`quaver generate | head` shall end quietly, but not what uses sockets."""
    before = signal.getsignal(signal.SIGPIPE)
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9"]) == 2
    assert signal.getsignal(signal.SIGPIPE) == before


def test_the_command_starts_without_loading_numpy() -> None:
    code = "import sys; from quaver.cli import _parser; _parser(); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
