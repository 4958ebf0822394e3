"""The definitions of the serving benchmark, proved on streams whose every arrival time is known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from quaver.bench.http_stream import EventStream
from quaver.bench.load import arrival_times
from quaver.bench.metrics import RequestRecord, summarise
from scripted_server import DONE, text_chunk, usage_chunk


def record_of(*arrivals: tuple[float, bytes], start: float = 100.0) -> RequestRecord:
    """The record of a stream that started at `start` and whose pieces came so many seconds later."""
    record = RequestRecord(prompt_len=7, start=start)
    stream = EventStream(record)
    for after, data in arrivals:
        stream.feed(data, start + after)
    stream.finish()
    return record


def test_times_of_one_request() -> None:
    record = record_of(
        (0.5, text_chunk("Hel")),
        (0.6, text_chunk("")),  # half a character: a token like any other
        (0.8, text_chunk("lo")),
        (2.0, usage_chunk(3)),  # no choices: no token, and not the end of the answer
        (3.0, DONE),
    )
    assert record.ttft == pytest.approx(0.5)
    assert record.itls == pytest.approx([0.1, 0.2])
    assert record.latency == pytest.approx(0.8)
    assert record.output_len == 3
    assert record.tpot() == pytest.approx((0.8 - 0.5) / 2)
    assert record.text == "Hello"


def test_tokens_per_output_token_follow_the_usage() -> None:
    """Two tokens in a chunk (speculative decoding): ITL sees chunks, TPOT and throughput see tokens."""
    record = record_of((1.0, text_chunk("a")), (2.0, text_chunk("bc")), (2.0, usage_chunk(3)), (2.0, DONE))
    assert record.itls == pytest.approx([1.0])
    assert record.tpot() == pytest.approx(0.5)


def test_an_answer_of_one_token_has_no_tpot() -> None:
    record = record_of((1.0, text_chunk("a")), (1.0, usage_chunk(1)), (1.0, DONE))
    assert record.tpot() is None and record.itls == []
    result = summarise([record], 2.0, [99])
    assert "mean_tpot_ms" not in result and result["mean_ttft_ms"] == pytest.approx(1000)


def test_chunks_that_come_together_have_no_time_between_them() -> None:
    both = text_chunk("a") + text_chunk("b")
    record = record_of((1.0, both), (1.5, usage_chunk(2) + DONE))
    assert record.itls == [0.0]


def test_a_stream_cut_anywhere_is_the_same() -> None:
    data = b": ping\n\n" + text_chunk("é") + b"\r\n" + text_chunk("b") + usage_chunk(2) + DONE
    whole = record_of((1.0, data))
    for cut in range(1, len(data)):
        parts = record_of((1.0, data[:cut]), (1.0, data[cut:]))
        assert parts == whole
    assert whole.text == "éb" and whole.num_chunks == 2


def test_chat_chunks() -> None:
    def delta(**fields: object) -> bytes:
        return b"data: %s\n\n" % json.dumps({"choices": [{"index": 0, "delta": fields}]}).encode()

    record = record_of(
        (0.5, delta(role="assistant", content="")), (0.6, delta(content="Hi")), (0.9, delta()), (1.0, DONE)
    )
    assert record.ttft == pytest.approx(0.5) and record.itls == pytest.approx([0.1, 0.3])
    assert record.text == "Hi" and record.output_len is None


@pytest.mark.parametrize(("data", "message"), [
    (text_chunk("a"), "without .DONE."),
    (DONE, "no chunk with choices"),
    (usage_chunk(3) + DONE, "no chunk with choices"),
    (text_chunk("a") + b'data: {"error": {"message": "out of memory"}}\n\n' + DONE, "out of memory"),
    (b"data: {\n\n" + DONE, "Expecting"),
])  # fmt: skip
def test_streams_that_are_no_answer(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record_of((1.0, data))


def test_figures_of_a_run() -> None:
    """Two answers of 3 and 5 tokens in 2 s, and a failed one that counts nowhere else."""
    first = record_of(
        (0.2, text_chunk("a")), (0.3, text_chunk("b")), (0.5, text_chunk("c")), (0.5, usage_chunk(3) + DONE)
    )
    second = record_of(
        (0.4, text_chunk("a")),
        *((0.4 + 0.1 * i, text_chunk("b")) for i in range(1, 5)),
        (0.9, usage_chunk(5) + DONE),
    )
    failed = RequestRecord(prompt_len=1000, start=0.0, error="HTTP 500: no room")
    failed.chunk(9.0, "x")
    result = summarise([first, failed, second], 2.0, [50, 99])
    assert (result["completed"], result["failed"], result["errors"]) == (2, 1, ["HTTP 500: no room"])
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (14, 8)
    assert result["request_throughput"] == 1.0
    assert result["output_throughput"] == 4.0
    assert result["total_token_throughput"] == 11.0
    assert result["mean_ttft_ms"] == pytest.approx(300)
    assert result["median_ttft_ms"] == pytest.approx(300)
    assert result["p99_ttft_ms"] == pytest.approx(200 + 0.99 * 200)
    itls = [100, 200, 100, 100, 100, 100]  # pooled, not a mean of means
    assert result["mean_itl_ms"] == pytest.approx(np.mean(itls))
    assert result["p99_itl_ms"] == pytest.approx(np.percentile(itls, 99))
    assert result["mean_tpot_ms"] == pytest.approx((150 + 100) / 2)
    assert result["mean_e2el_ms"] == pytest.approx((500 + 800) / 2)
    assert result["std_e2el_ms"] == pytest.approx(150)


def test_nothing_completed() -> None:
    result = summarise([RequestRecord(prompt_len=1, start=0.0, error="refused")], 1.0, [99])
    assert result["completed"] == 0 and result["output_throughput"] == 0
    assert not any(key.endswith("_ms") for key in result)


def test_arrival_times() -> None:
    assert arrival_times(3, math.inf, seed=0) == [0.0] * 3
    times = np.array(arrival_times(2000, 50.0, seed=1))
    assert times[-1] == pytest.approx(2000 / 50)
    gaps = np.diff(times)
    assert (gaps > 0).all()
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # exponential
    assert arrival_times(5, 2.0, seed=1) == arrival_times(5, 2.0, seed=1) != arrival_times(5, 2.0, seed=2)
