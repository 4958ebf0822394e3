"""lm-eval on the tasks of tests/golden/lm_eval_tasks, against Gemma 3 270M. docs/accuracy.md has the whole scores, with
both caches; here a part of each task runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quaver.bench.local_server import LocalServer

MODEL = "gemma"
TASKS = Path(__file__).resolve().parents[2] / "golden" / "lm_eval_tasks"

pytestmark = pytest.mark.filterwarnings("ignore")  # those of lm-eval and of what it imports


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def evaluate(
    server: LocalServer, model: str, path: str, tasks: list[str], limit: int, **options: Any
) -> dict[str, Any]:
    import lm_eval
    from lm_eval.tasks import TaskManager

    result = lm_eval.simple_evaluate(
        model=model,
        model_args={"model": MODEL, "base_url": server.url + path, "num_concurrent": 4, "max_retries": 1},
        tasks=tasks,
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        limit=limit,
        log_samples=False,
        bootstrap_iters=0,
        **options,
    )
    return result["results"]


def test_log_likelihood_and_generation(gemma_server: LocalServer) -> None:
    """Token ids both ways: lm-eval uses the server's own tokenizer, and then puts no <bos> in front, add_bos_token or
    not. A model that guesses has 0.25 and 0."""
    results = evaluate(
        gemma_server, "local-completions", "/v1/completions", ["quaver_endings", "quaver_capitals"], limit=6,
        system_instruction="<bos>",
    )  # fmt: skip
    assert results["quaver_endings"]["acc,none"] >= 0.6
    assert results["quaver_capitals"]["contains,none"] >= 0.6


def test_chat(gemma_server: LocalServer) -> None:
    results = evaluate(
        gemma_server, "local-chat-completions", "/v1/chat/completions", ["quaver_capitals"], limit=6,
        apply_chat_template=True, fewshot_as_multiturn=True,
    )  # fmt: skip
    assert results["quaver_capitals"]["contains,none"] >= 0.6
