"""The fixture that most of the server's tests use; what is behind it is in serving.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from serving import Serve, client_of


@pytest.fixture
def serve(tiny_dir: Path) -> Iterator[Serve]:
    """client_of() for one test."""
    with ExitStack() as stack:
        yield lambda *engines, **options: stack.enter_context(client_of(*engines, model_dir=tiny_dir, **options))
