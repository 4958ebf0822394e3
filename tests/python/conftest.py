"""Fixtures shared by the Python tests: the real 270M model, made by scripts/model.sh, and tiny synthetic files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from quaver.convert import convert
from quaver.tokenizer import Tokenizer
from tiny_gguf import write_gemma3

ROOT = Path(__file__).resolve().parents[2]

settings.register_profile("always the same cases", deadline=None, derandomize=True)
settings.load_profile("always the same cases")


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """Gemma 3 270M as converted by scripts/model.sh, which scripts/test.sh runs first."""
    path = ROOT / "models" / "gemma-3-270m"
    assert path.is_dir(), f"{path} is missing: run the tests through `make test`"
    return path


@pytest.fixture(scope="session")
def gguf_file() -> Path:
    """The Q4_K_M file that `model_dir` was converted from."""
    return ROOT / "models" / "gemma-3-270m-q4_k_m.gguf"


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer(model_dir)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted two-layer Gemma 3 with random weights and a vocabulary of 300 pieces."""
    folder = tmp_path_factory.mktemp("tiny")
    convert(write_gemma3(folder / "tiny.gguf"), folder / "model")
    return folder / "model"


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_dir: Path) -> Tokenizer:
    tokenizer = Tokenizer(tiny_dir)
    tokenizer.load_whole()
    return tokenizer
