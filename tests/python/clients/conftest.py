"""Real servers for real clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quaver.bench.local_server import LocalServer


@pytest.fixture(scope="session")
def gemma_server(model_dir: Path) -> Iterator[LocalServer]:
    """`quaver serve` with Gemma 3 270M and an FP8 cache."""
    flags = ("--served-model-name", "gemma", "--max-model-len", 1024, "--kv-cache-memory-bytes", 64 << 20)
    with LocalServer(model_dir, *flags) as server:
        yield server
    assert server.stop() == 0
