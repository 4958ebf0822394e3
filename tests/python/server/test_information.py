"""/health, /metrics, /tokenize and the other small endpoints."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from fake_engine import FakeEngine
from prometheus_client.parser import text_string_to_metric_families
from serving import client_of

import quaver
from quaver.tokenizer import Tokenizer

ENGINE = FakeEngine(lambda *_: [5] * 1000)


@pytest.fixture(scope="module")
def client(tiny_dir: Path) -> Iterator[httpx2.Client]:
    with client_of(ENGINE, model_dir=tiny_dir) as client:
        yield client


def metrics(client: httpx2.Client) -> dict[str, float]:
    """Samples without buckets, by name and labels."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]
    return {
        f"{sample.name}{''.join(f' {value}' for value in sample.labels.values())}": sample.value
        for sample in samples
        if not sample.name.endswith("_bucket")
    }


def test_version_and_models(client: httpx2.Client, tiny_dir: Path) -> None:
    assert client.get("/version").json() == {"version": quaver.__version__}
    (model,) = client.get("/v1/models").json()["data"]
    assert model.pop("created") > 1e9
    assert model == {"id": "tiny", "object": "model", "owned_by": "quaver", "root": str(tiny_dir), "max_model_len": 256}


def test_tokenize_and_back(client: httpx2.Client, tiny_tokenizer: Tokenizer) -> None:
    text = "hello 😀<end_of_turn>wörld"
    answer = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    ids = tiny_tokenizer.encode_prompt(text, add_bos=False)
    assert answer == {"count": len(ids), "max_model_len": 256, "tokens": ids}
    assert client.post("/detokenize", json={"tokens": ids}).json() == {"prompt": text}
    assert client.post("/tokenize", json={"prompt": text}).json()["tokens"] == [2, *ids]
    chat = client.post("/tokenize", json={"messages": [{"role": "user", "content": "hello"}]}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": chat}).json()["prompt"] == (
        "<bos><start_of_turn>user\nhello<end_of_turn>\n<start_of_turn>model\n"
    )
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    assert client.post("/detokenize", json={"tokens": [1 << 30]}).json() == {"prompt": ""}
    assert client.post("/tokenize", json={"prompt": ""}).json()["tokens"] == [2]
    for body in ({}, {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, {"prompt": 5}):
        assert client.post("/tokenize", json=body).status_code == 400
    assert client.post("/detokenize", json={"tokens": [-1]}).status_code == 400


def test_tokenizer_info(client: httpx2.Client) -> None:
    """What lm-eval reads."""
    info = client.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"]) == ("<bos>", "<eos>")
    assert "start_of_turn" in info["chat_template"]


def test_metrics(client: httpx2.Client) -> None:
    before = metrics(client)
    client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 7, "n": 2})
    client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 5, "stop": "hell"})
    after = metrics(client)
    change = {name: after[name] - before.get(name, 0.0) for name in after}
    assert change["quaver:generation_tokens_total 0"] == 19
    assert change["quaver:request_finished_total length"] == 3
    assert change["quaver:time_to_first_token_seconds_count"] == change["quaver:e2e_request_latency_seconds_count"] == 3
    assert change["quaver:inter_token_latency_seconds_count"] == 16
    assert 0 < change["quaver:time_to_first_token_seconds_sum"] < change["quaver:e2e_request_latency_seconds_sum"]
    assert after["quaver:engine_up 0"] == 1 and after["quaver:kv_pages 0"] == 8
    assert after["quaver:num_requests_running 0"] == after["quaver:kv_cache_usage 0"] == 0


def test_no_answer_waits_for_an_acknowledgement(client: httpx2.Client) -> None:
    """40 ms, if the kernel holds small packets back."""
    client.get("/health")

    def seconds() -> float:
        start = time.perf_counter()
        client.get("/health")
        return time.perf_counter() - start

    assert min(seconds() for _ in range(20)) < 0.03


def test_request_ids(client: httpx2.Client) -> None:
    """B42: echoed, also when two live requests have the same; made up where it is missing or no header value."""
    same = {"X-Request-Id": "mine-1"}
    with (
        client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}, headers=same) as one,
        client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}, headers=same) as two,
    ):
        assert one.headers["x-request-id"] == two.headers["x-request-id"] == "mine-1"
        first, second = one.read(), two.read()
    assert first.endswith(b"data: [DONE]\n\n") and second.endswith(b"data: [DONE]\n\n")
    ids = [re.search(rb'"id":"([^"]+)"', text)[1] for text in (first, second)]
    assert ids[0] != ids[1]
    for headers in ({}, {"X-Request-Id": ""}, {"X-Request-Id": "a" * 300}, {"X-Request-Id": "a b"}):
        assert re.fullmatch("[0-9a-f]{32}", client.get("/nowhere", headers=headers).headers["x-request-id"])
