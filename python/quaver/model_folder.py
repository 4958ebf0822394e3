"""Which folder a --model means, and where its tokenizer is."""

from __future__ import annotations

from pathlib import Path

from quaver.errors import BadInputError

_FACTS = Path(__file__).parent / "model_facts"  # config.json of known models, without weights
_SAME_IDS = Path("models") / "gemma-3-270m"  # where `make demo` puts it; Gemma 3 and 4 share their ids


def model_folder(text: str) -> Path:
    """`text` as a folder, or the configuration of that name that comes with Quaver (for --load-format dummy)."""
    folder = Path(text)
    known = _FACTS / text
    return known if text in _names() and not folder.exists() else folder


def tokenizer_folder(model: Path, tokenizer: Path | None) -> Path:
    """`tokenizer` if there is one, else the model's folder. Configurations without a tokenizer take Gemma 3 270M's."""
    if tokenizer is not None:
        return tokenizer
    if model.parent != _FACTS:
        return model
    if not (_SAME_IDS / "tokenizer.json").exists():
        raise BadInputError(
            f"--model {model.name}: expected --tokenizer DIR, of any Gemma 3 or 4 model, or {_SAME_IDS} (make demo)"
        )
    return _SAME_IDS


def _names() -> list[str]:
    return [folder.name for folder in _FACTS.iterdir() if folder.is_dir()]
