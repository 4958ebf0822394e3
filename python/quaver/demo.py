"""`make demo`: Gemma 3 270M answers two prompts with an FP8 and with a BF16 cache, side by side."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from quaver import _quaver
from quaver.example_model import notice
from quaver.progress import SlowTask
from quaver.tokenizer import TextStream, Tokenizer, stop_ids

PROMPTS = ("The Eiffel Tower is in the city of", "Once upon a time, there was a little")
DTYPES = ("fp8", "bf16")
MAX_TOKENS = 48


@dataclass
class Answer:
    """One column: what a cache type made of the prompt, so far."""

    dtype: str
    prompt: str
    text: str = ""
    result: Any = None
    cache_bytes: int = 0
    errors: Any = None

    def __rich__(self) -> Panel:
        body = Text.assemble((self.prompt, "bold"), self.text)
        if self.result is not None:
            body.append(
                f"\n\n{self.result.decode_tokens_per_s:.1f} tokens/s, first token after {self.result.ttft_s:.2f} s\n"
                f"{self.cache_bytes:,} cache bytes per token\n"
                f"attention error {self.errors.exact_cache:.1e} (arithmetic alone {self.errors.same_cache:.1e})",
                style="dim",
            )
        return Panel(body, title=f"{self.dtype.upper()} cache")


def run(model: Path) -> int:
    console = Console()
    console.print(Panel(notice(model.parent), title="Gemma 3 270M"))
    tokenizer = Tokenizer(model)
    with SlowTask("loading the model"):
        generators = {dtype: _quaver.Generator.load(model, kv_cache_dtype=dtype, max_model_len=512) for dtype in DTYPES}
    for prompt in PROMPTS:
        answers = [Answer(dtype, prompt, cache_bytes=generators[dtype].kv_bytes_per_token) for dtype in DTYPES]
        with Live(_side_by_side(answers), console=console, refresh_per_second=8):
            for answer in answers:
                _fill(answer, tokenizer, generators[answer.dtype], model)
        console.print()
    console.print(
        "Attention error: relative L2 distance of the run's attention outputs from float64 attention on the keys and "
        "values before they were stored; in brackets: on what the cache holds.",
        style="dim",
    )
    return 0


def _side_by_side(answers: list[Answer]) -> Table:
    table = Table.grid(expand=True)
    for _ in answers:
        table.add_column(ratio=1)
    table.add_row(*answers)
    return table


def _fill(answer: Answer, tokenizer: Tokenizer, generator: Any, model: Path) -> None:
    stream = TextStream(tokenizer)
    probe = generator.probe_attention()

    def show(token_id: int) -> bool:
        answer.text += stream.push(token_id)
        return True

    answer.result = generator.generate(
        tokenizer.encode_prompt(answer.prompt), show, max_tokens=MAX_TOKENS, stop_token_ids=stop_ids(model)
    )
    answer.text += stream.finish()
    answer.errors = probe.errors()


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
