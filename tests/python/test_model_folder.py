"""Gemma 4 31B without a checkpoint: its name, its tokenizer, and a reduced dummy of it that generates on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quaver.cli import main
from quaver.errors import BadInputError
from quaver.model_folder import model_folder, tokenizer_folder
from quaver.tokenizer import stop_ids
from test_cli import assert_one_line, quaver

NAME = "gemma-4-31b"
REDUCED = json.dumps({"num_hidden_layers": 2, "vocab_size": 512, "intermediate_size": 1408})  # 0.25 GB
DUMMY = ("--model", NAME, "--load-format", "dummy", "--hf-overrides", REDUCED)


def test_a_folder_of_the_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    facts = model_folder(NAME)
    assert facts.name == NAME and (facts / "config.json").exists()
    assert stop_ids(facts) == [1, 106, 50]
    Path(NAME).mkdir()
    assert model_folder(NAME) == Path(NAME)
    assert model_folder("other") == Path("other")


def test_where_the_tokenizer_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    facts = model_folder(NAME)
    assert tokenizer_folder(Path("checkpoint"), None) == Path("checkpoint")
    assert tokenizer_folder(facts, Path("given")) == Path("given")
    with pytest.raises(BadInputError, match="--tokenizer DIR"):
        tokenizer_folder(facts, None)
    example = Path("models/gemma-3-270m")
    example.mkdir(parents=True)
    (example / "tokenizer.json").touch()
    assert tokenizer_folder(facts, None) == example


def test_generate(tiny_dir: Path) -> None:
    result = quaver("generate", *DUMMY, "--tokenizer", tiny_dir, "--prompt", "hello", "--max-tokens", 3)
    assert result.returncode == 0, result.stderr
    assert "dummy weights" in result.stderr
    assert "12,288 cache bytes per token, 3 tokens (length)" in result.stderr  # 2 x 16 x 256 and 2 x 4 x 512


def test_bench_offline(tiny_dir: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    load = ("--random-input-len", 24, "--random-output-len", 3, "--num-prompts", 3, "--max-model-len", 64)
    arguments = ("bench", "offline", *DUMMY, "--tokenizer", tiny_dir, *load, "--save-result", report)
    assert main([str(argument) for argument in arguments]) == 0
    (run,) = json.loads(report.read_text())["runs"]
    assert (run["completed"], run["total_output_tokens"]) == (3, 9)


def test_without_dummy_weights(tiny_dir: Path) -> None:
    result = quaver("generate", "--model", NAME, "--tokenizer", tiny_dir, "--prompt", "hello")
    assert_one_line(result, 2, f"{NAME} without weights")


def test_explain() -> None:
    result = quaver("explain", "--model", NAME, "--max-model-len", 9216, "--max-num-batched-tokens", 8192)
    assert result.returncode == 0, result.stderr
    expected = ("60 layers", "10 layers: full attention, 32 q heads, 4 kv heads of 512", "pages of 128",
                "50 layers: window 1024, 32 q heads, 16 kv heads of 256", "pages of 64",
                "weights 29.92 GiB", "cache 0.77 GiB a sequence and 3.10 GiB for a chunk")  # fmt: skip
    assert all(part in result.stdout for part in expected), result.stdout
    assert_one_line(quaver("explain", "--q-heads", 32, "--kv-heads", 4), 2, "--head-dim")
