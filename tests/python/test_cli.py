"""The command line as people meet it: right answers, and one clear line for every bad input."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_gguf import write_gemma3

PROMPT = "The Eiffel Tower is in the city of"


def quaver(*arguments: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quaver", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def assert_one_line(result: subprocess.CompletedProcess[str], code: int, message: str) -> None:
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1 and message in result.stderr, result.stderr


def test_version() -> None:
    result = quaver("--version")
    assert result.returncode == 0 and result.stdout.startswith("quaver 0.")


@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
def test_the_real_model_answers(model_dir: Path, dtype: str) -> None:
    result = quaver("generate", "--model", model_dir, "--prompt", PROMPT, "--max-tokens", 8, "--kv-cache-dtype", dtype)
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    figures = result.stderr.splitlines()[-1]
    cache_bytes = {"fp8": "9,216", "bf16": "18,432"}[dtype]  # 18 layers x (256 + 256) values
    assert f"{cache_bytes} cache bytes per token" in figures and "8 tokens (length)" in figures
    assert "tokens/s, first token after" in figures


def test_seeds_decide_the_draws(tiny_dir: Path) -> None:
    def draw(seed: int, temperature: float = 1.0) -> str:
        result = quaver("generate", "--model", tiny_dir, "--prompt", "hello", "--max-tokens", 24,
                        "--temperature", temperature, "--seed", seed)  # fmt: skip
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert draw(1) == draw(1) != draw(2)
    assert draw(1, temperature=0) == draw(2, temperature=0)


def test_options_of_generate(tiny_dir: Path) -> None:
    common = ("generate", "--model", tiny_dir, "--prompt", "hello", "--max-tokens", 4)
    for extra in (("--chat", "--system", "user"), ("--load-format", "dummy"), ("--kv-scales", "one"),
                  ("--hf-overrides", '{"sliding_window": 16}'), ("--block-size", 16), ("--max-tokens", 0),
                  ("--attention-precision", "full"),
                  ("--temperature", 0.7, "--top-k", 5, "--top-p", 0.9, "--min-p", 0.05)):  # fmt: skip
        result = quaver(*common, *extra)
        assert result.returncode == 0, (extra, result.stderr)


def test_convert(tmp_path: Path) -> None:
    result = quaver("convert", write_gemma3(tmp_path / "tiny.gguf"), tmp_path / "model")
    assert result.returncode == 0 and result.stderr == ""
    assert (tmp_path / "model" / "model.safetensors").exists()


@pytest.mark.parametrize(("arguments", "expected"), [
    (["--arch", 90], ["sm_90", "head dim 256"]),
    (["--arch", 0], ["cpu", "full"]),
    (["--arch", 0, "--kernel", "decode_fp8"], ["not supported", "decode_fp8"]),
    (["--arch", 0, "--window", 1024, "--softcap", 50, "--sinks"], ["window", "softcap", "sinks"]),
])  # fmt: skip
def test_explain(arguments: list[object], expected: list[str]) -> None:
    result = quaver("explain", "--head-dim", 256, "--kv-heads", 16, "--q-heads", 32, *arguments)
    assert result.returncode == 0 and result.stderr == ""
    assert all(word in result.stdout for word in expected), result.stdout
    assert "why:" in result.stdout


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "command"),
    (["frobnicate"], "frobnicate"),
    (["generate", "--prompt", "x"], "--model"),
    (["generate", "--model", "/nonexistent", "--prompt", "x"], "/nonexistent"),
    (["generate", "--model", "MODEL", "--prompt", ""], "prompt"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--system", "y"], "--chat"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--kv-cache-dtype", "int4"], "int4"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--block-size", "48"], "48"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--max-tokens", "-1"], "-1"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--max-tokens", "ten"], "ten"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--max-tokens", "512"], "512"),
    (["generate", "--model", "MODEL", "--prompt", "hello " * 600], "512"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--temperature", "-1"], "temperature"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--temperature", "nan"], "temperature"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--top-p", "1.5"], "top_p"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--top-k", "-5"], "top_k"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--seed", "-1"], "-1"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--hf-overrides", "{"], "overrides"),
    (["generate", "--model", "MODEL", "--prompt", "x", "--hf-overrides", '{"head_dim": -4}'], "head_dim"),
    (["generate", "--model", "MODEL", "--prompt", "\udcff"], "surrogates"),
    (["convert", "/nonexistent.gguf", "out"], "/nonexistent.gguf"),
    (["convert", "MODEL/config.json", "MODEL/out"], "GGUF"),
    (["explain", "--head-dim", "256", "--kv-heads", "16", "--q-heads", "x"], "x"),
    (["explain", "--head-dim", "256", "--kv-heads", "16", "--q-heads", "32", "--precision", "double"], "double"),
    (["explain", "--head-dim", "256", "--kv-heads", "16", "--q-heads", "32", "--kernel", "warp"], "warp"),
], ids=str)  # fmt: skip
def test_bad_input(tiny_dir: Path, arguments: list[str], message: str) -> None:
    arguments = [argument.replace("MODEL", str(tiny_dir)) for argument in arguments]
    assert_one_line(quaver(*arguments), 2, message)


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)


def _damage_header(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(b"\xff" * 8)


def _edit_config(field: str, value: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {field: value}))

    return edit


@pytest.mark.parametrize(("damage", "message"), [
    (_truncate, "model.safetensors"),
    (_damage_header, "model.safetensors"),
    (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
    (lambda folder: (folder / "config.json").unlink(), "config.json"),
    (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
    (lambda folder: (folder / "config.json").write_text("[" * 100_000), "config.json"),
    (lambda folder: (folder / "tokenizer_index.bin").write_bytes(b"x"), "tokenizer index"),
    (lambda folder: (folder / "tokenizer_config.json").write_text("[]"), "tokenizer_config.json"),
    (_edit_config("model_type", "llama"), "llama"),
    (_edit_config("hidden_size", 1 << 40), "hidden_size"),
    (_edit_config("num_hidden_layers", 3), "3"),
    (_edit_config("head_dim", "wide"), "head_dim"),
    (_edit_config("vocab_size", 299), "299"),
])  # fmt: skip
def test_damaged_models(tiny_dir: Path, tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    folder = Path(shutil.copytree(tiny_dir, tmp_path / "model"))
    damage(folder)
    result = quaver("generate", "--model", folder, "--prompt", "hello", "--max-tokens", 1)
    assert result.returncode in (1, 2)
    assert_one_line(result, result.returncode, message)


def test_interrupt_is_one_line(model_dir: Path) -> None:
    command = [sys.executable, "-m", "quaver", "generate", "--model", model_dir, "--prompt", PROMPT,
               "--max-tokens", "20000"]  # fmt: skip
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A job in the background of a shell starts with SIGINT ignored, and children inherit that.
    default_sigint = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, **pipes, preexec_fn=default_sigint) as process:
        assert process.stdout.read(1)  # it is generating
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors and errors.splitlines()[-1] == "quaver: interrupted"


def test_a_closed_pipe_ends_quietly(tiny_dir: Path) -> None:
    command = [sys.executable, "-m", "quaver", "generate", "--model", tiny_dir, "--prompt", "hello",
               "--max-tokens", "500"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == -signal.SIGPIPE
    assert "Traceback" not in errors and "BrokenPipe" not in errors


def test_start_up(model_dir: Path) -> None:
    """Process start to first token takes at most three times what reading the weights file into memory takes; both
    measured in turn, the best of five each, because the machine has other work."""
    reading, starting = [], []
    for _ in range(5):
        start = time.perf_counter()
        (model_dir / "model.safetensors").read_bytes()
        reading.append(time.perf_counter() - start)
        start = time.perf_counter()
        result = quaver("generate", "--model", model_dir, "--prompt", PROMPT, "--max-tokens", 1)
        starting.append(time.perf_counter() - start)
        assert result.returncode == 0
    assert min(starting) <= 3 * min(reading), (starting, reading)
