"""What one request took, and the figures of a run: the definitions (and the names in JSON) of `vllm bench serve`.

TTFT   first chunk with choices - start        ITL    gaps between such chunks, of all requests together
E2EL   last chunk with choices - start         TPOT   (E2EL - TTFT) / (output tokens - 1) of one request
throughput: requests or tokens / duration of the whole run
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class RequestRecord:
    """Times in seconds. `chunk` is called with the time at which each chunk came."""

    prompt_len: int
    start: float
    ttft: float = 0.0
    latency: float = 0.0  # E2EL
    itls: list[float] = field(default_factory=list)
    num_chunks: int = 0
    text: str = ""
    output_len: int | None = None  # as the server counts; None: it does not say
    error: str = ""

    def chunk(self, now: float, text: str = "") -> None:
        elapsed = now - self.start
        if self.num_chunks == 0:
            self.ttft = elapsed
        else:
            self.itls.append(elapsed - self.latency)
        self.latency = elapsed
        self.num_chunks += 1
        self.text += text

    def tpot(self) -> float | None:
        """None for an answer of one token, which has no time between tokens."""
        if self.output_len is None or self.output_len < 2:
            return None
        return (self.latency - self.ttft) / (self.output_len - 1)


def summarise(records: Sequence[RequestRecord], duration: float, percentiles: Sequence[float]) -> dict[str, Any]:
    """The figures of a run. Failed requests are counted, and count in nothing else. No completed request: no times."""
    completed = [record for record in records if not record.error]
    input_tokens = sum(record.prompt_len for record in completed)
    output_tokens = sum(record.output_len or 0 for record in completed)
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(completed),
        "failed": len(records) - len(completed),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(completed) / duration,
        "output_throughput": output_tokens / duration,
        "total_token_throughput": (input_tokens + output_tokens) / duration,
    }
    samples = {
        "ttft": [record.ttft for record in completed],
        "tpot": [tpot for record in completed if (tpot := record.tpot()) is not None],
        "itl": [gap for record in completed for gap in record.itls],
        "e2el": [record.latency for record in completed],
    }
    for name, values in samples.items():
        if values:
            result |= _statistics(name, np.asarray(values) * 1000, percentiles)
    result["errors"] = sorted({record.error for record in records if record.error})
    return result


def percentile_key(percentile: float, metric: str) -> str:
    return f"p{percentile:g}_{metric}_ms"


def _statistics(name: str, ms: np.ndarray, percentiles: Sequence[float]) -> dict[str, float]:
    result = {f"mean_{name}_ms": float(ms.mean()), f"median_{name}_ms": float(np.median(ms))}
    result[f"std_{name}_ms"] = float(ms.std())
    return result | {percentile_key(p, name): float(np.percentile(ms, p)) for p in percentiles}
