"""Makes a `tokenizers` BPE tokenizer from the vocabulary in a GGUF file (Gemma 3: scores; Gemma 4: merges)."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from quaver.errors import BadInputError

SPACE = "▁"  # U+2581, what the vocabulary writes for a space
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6


def build_tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """The tokenizer of GGUF metadata `fields`. Raises BadInputError when they do not describe a Gemma vocabulary.

    User-defined pieces (runs of spaces, newlines and tabs, HTML tags) become added tokens that match the normalised
    text before BPE runs, as SentencePiece freezes them; control pieces become special tokens.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind not in ("llama", "gemma4"):
        raise BadInputError(f"tokenizer.ggml.model {kind}: expected llama (Gemma 3) or gemma4")
    types = [int(kind) for kind in _required(fields, "token_type")]
    pieces = [_piece(text, kind) for text, kind in zip(_required(fields, "tokens"), types, strict=True)]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    if len(vocabulary) != len(pieces):
        raise BadInputError(f"tokenizer.ggml.tokens: expected {len(pieces)} different pieces, found {len(vocabulary)}")

    if kind == "gemma4":
        merges = [_split_merge(line, vocabulary) for line in _required(fields, "merges")]
    else:
        merges = _merges_from_scores(pieces, types, _required(fields, "scores"))
    unknown = pieces[_token_id(fields, "unknown", pieces)]
    bos_id = _token_id(fields, "bos", pieces)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{pieces[bos_id]} $A", special_tokens=[(pieces[bos_id], bos_id)]
    )
    by_type = {kind: [piece for piece, of in zip(pieces, types, strict=True) if of == kind] for kind in set(types)}
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False) for piece in by_type.get(_CONTROL, [])])
    tokenizer.add_tokens([AddedToken(piece, normalized=True) for piece in by_type.get(_USER_DEFINED, [])])
    return tokenizer


def tokenizer_config(fields: dict[str, Any], chat_template: str) -> dict[str, Any]:
    """tokenizer_config.json: the named tokens, BOS on raw prompts, and the chat template."""
    tokens = fields["tokenizer.ggml.tokens"]
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    config: dict[str, Any] = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False}
    config |= {f"{name}_token": tokens[_token_id(fields, key, tokens)] for name, key in names.items()}
    return config | {"clean_up_tokenization_spaces": False, "chat_template": chat_template}


def _required(fields: dict[str, Any], name: str) -> Any:
    key = f"tokenizer.ggml.{name}"
    if key not in fields or isinstance(fields[key], str | int | float):
        raise BadInputError(f"metadata {key}: expected an array")
    return fields[key]


def _token_id(fields: dict[str, Any], name: str, tokens: list[str]) -> int:
    defaults = {"padding": 0, "eos": 1, "bos": 2, "unknown": 3}
    token_id = fields.get(f"tokenizer.ggml.{name}_token_id", defaults[name])
    if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
        raise BadInputError(f"tokenizer.ggml.{name}_token_id {token_id}: expected 0 to {len(tokens) - 1}")
    return token_id


def _piece(text: str, kind: int) -> str:
    """GGUF stores user-defined pieces with real spaces, which never reach the model after normalisation."""
    return text.replace(" ", SPACE) if kind == _USER_DEFINED else text


def _merges_from_scores(pieces: list[str], types: list[int], scores: Any) -> list[tuple[str, str]]:
    """Every way to put a normal piece together from two others, best score first: SentencePiece's merge order."""
    if len(scores) != len(pieces):
        raise BadInputError(f"tokenizer.ggml.scores length {len(scores)}: expected {len(pieces)}")
    normal = {piece for piece, kind in zip(pieces, types, strict=True) if kind == _NORMAL}
    ranked = sorted((-float(score), piece) for piece, score in zip(pieces, scores, strict=True) if piece in normal)
    return [
        (piece[:cut], piece[cut:])
        for _, piece in ranked
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]


def _split_merge(line: str, vocabulary: dict[str, int]) -> tuple[str, str]:
    """ "a b": the first character may itself be a space-like piece, so the separator is searched from the second."""
    cut = line.find(" ", 1)
    left, right = line[:cut], line[cut + 1 :]
    if cut < 0 or any(part not in vocabulary for part in (left, right, left + right)):
        raise BadInputError(f"tokenizer.ggml.merges entry {line[:80]!r}: expected two pieces of the vocabulary")
    return left, right
