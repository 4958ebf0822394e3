"""Figures for Prometheus: histograms that the server observes, and the engines' own counts, read at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
            10.0, 20.0, 40.0, 80.0, 160.0, 640.0)  # fmt: skip

# (name, what it is, its value from EngineStats)
_GAUGES: list[tuple[str, str, Callable[[Any], float]]] = [
    ("num_requests_running", "Requests in the running batch", lambda stats: stats.num_running),
    ("num_requests_waiting", "Requests waiting for admission", lambda stats: stats.num_waiting),
    ("kv_pages", "Pages of the KV cache", lambda stats: stats.num_pages),
    ("kv_free_pages", "Free pages, those with a reusable prefix included", lambda stats: stats.num_free_pages),
    ("kv_cache_usage", "Share of the KV cache pages in use, 0 to 1",
     lambda stats: 1.0 - stats.num_free_pages / stats.num_pages if stats.num_pages else 0.0),
]  # fmt: skip
_COUNTERS: list[tuple[str, str, Callable[[Any], float]]] = [
    ("engine_steps", "Engine steps", lambda stats: stats.steps_total),
    ("engine_failed_steps", "Engine steps that failed", lambda stats: stats.failed_steps_total),
    ("preemptions", "Requests put back to the queue for lack of pages", lambda stats: stats.preemptions_total),
    ("prompt_tokens", "Prompt tokens of admitted requests", lambda stats: stats.prompt_tokens_total),
    ("generation_tokens", "Generated tokens", lambda stats: stats.generated_tokens_total),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", lambda stats: stats.prompt_tokens_total),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache", lambda stats: stats.cached_tokens_total),
]

EngineFigures = Callable[[], Iterable[tuple[int, Any, bool]]]  # (engine, EngineStats, whether it is healthy)


class Metrics:
    """The server's metrics in a registry of their own."""

    def __init__(self, engines: EngineFigures) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engines))

        def histogram(name: str, meaning: str) -> Histogram:
            return Histogram(f"quaver:{name}_seconds", meaning, buckets=_SECONDS, registry=self._registry)

        self.ttft = histogram("time_to_first_token", "From queueing to the first token of a choice")
        self.itl = histogram("inter_token_latency", "Between two tokens of a choice")
        self.e2e = histogram("e2e_request_latency", "From queueing to the end of a choice")
        self._finished = Counter("quaver:request_finished", "Choices that ended", ["reason"], registry=self._registry)

    def finished(self, reason: str, count: int = 1) -> None:
        if count:
            self._finished.labels(reason).inc(count)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    def __init__(self, engines: EngineFigures) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        figures = list(self._engines())
        up = GaugeMetricFamily("quaver:engine_up", "1 while the engine runs", labels=["engine"])
        for index, _, healthy in figures:
            up.add_metric([str(index)], float(healthy))
        yield up
        for family, table in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, meaning, value in table:
                metric = family(f"quaver:{name}", meaning, labels=["engine"])
                for index, stats, _ in figures:
                    metric.add_metric([str(index)], float(value(stats)))
                yield metric
