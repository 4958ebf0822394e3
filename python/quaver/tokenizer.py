"""Text ↔ token ids of one model folder, through the `tokenizers` library.

A leading <bos> is there exactly once, special tokens inside chat content stay text, and decoding never splits UTF-8.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as HfTokenizer

from quaver.errors import BadInputError
from quaver.tokenizer_index import FILE_NAME, MAX_CHARACTERS, TokenizerIndex

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads are for many texts at once

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class _Vocabulary(Protocol):
    """The things that decoding needs; the whole tokenizer and the index both have them."""

    special_ids: frozenset[int]

    def __len__(self) -> int: ...

    def piece(self, token_id: int) -> str: ...


class Tokenizer:
    """The tokenizer of the model in `directory` (tokenizer.json; tokenizer_index.bin makes short texts quick)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.config = read_json(directory / "tokenizer_config.json", default={})
        if (template := directory / "chat_template.jinja").exists():  # newer checkpoints keep it beside the config
            self.config["chat_template"] = template.read_text(encoding="utf-8")
        index = directory / FILE_NAME
        self._index = TokenizerIndex(index) if index.exists() else None
        self._whole: _WholeVocabulary | None = None
        self.bos_id = self._single_id(token_text(self.config.get("bos_token", "<bos>")))

    def encode_prompt(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Ids of a raw prompt. It is the caller's own template: special tokens written in it count as such."""
        ids = self._encode(text, parse_special=True)
        return self._with_bos(ids) if add_bos else ids

    def encode_chat(self, rendered: str, guard: str) -> list[int]:
        """Ids of a rendered chat. Special tokens count where the template wrote them; those of the content carry
        `guard` (see chat.render) and stay text."""
        ids: list[int] = []
        for text, is_special in self.split_special(rendered):
            ids += self._encode(text.replace(guard, ""), parse_special=is_special)
        return self._with_bos(ids)

    def split_special(self, text: str) -> list[tuple[str, bool]]:
        """`text` cut at its special tokens: (part, whether it is one)."""
        tokenizer = self._tokenizer_for(text, parse_special=True)
        encoding = tokenizer.encode_batch([text], add_special_tokens=False)[0]
        parts: list[tuple[str, bool]] = []
        done = 0
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self.special_ids:
                parts += [(text[done:start], False), (text[start:end], True)]
                done = end
        parts.append((text[done:], False))
        return [part for part in parts if part[0]]

    def decode(self, ids: Iterable[int]) -> str:
        stream = TextStream(self)
        return "".join([*(stream.push(token_id) for token_id in ids), stream.finish()])

    def piece(self, token_id: int) -> str:
        """The vocabulary's name of a token; empty for ids that have none (vocabularies are padded)."""
        return self._vocabulary.piece(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token stands for: none for special tokens, part of a character for byte tokens."""
        if token_id in self.special_ids:
            return b""
        piece = self.piece(token_id)
        byte = _BYTE_PIECE.fullmatch(piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that stand for no text: <bos>, the turn markers, …"""
        return self._vocabulary.special_ids

    @property
    def vocab_size(self) -> int:
        """Number of pieces; a model may have more rows than that."""
        return len(self._vocabulary)

    @property
    def _vocabulary(self) -> _Vocabulary:
        return self._index or self.load_whole()

    def load_whole(self) -> _WholeVocabulary:
        """Loads the whole vocabulary (0.8-1.8 s), from where on each text takes microseconds: for many texts."""
        if self._whole is None:
            self._whole = _WholeVocabulary(self._directory / "tokenizer.json")
        return self._whole

    def longest_piece(self) -> int:
        """Most characters that one token stands for."""
        return max(map(len, self.load_whole().tokenizer.get_vocab()))

    def _tokenizer_for(self, text: str, *, parse_special: bool) -> HfTokenizer:
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise BadInputError(f"text {text[:40]!r}: expected Unicode without lone surrogates")
        short = self._index is not None and self._whole is None and len(text) <= MAX_CHARACTERS
        tokenizer = self._index.tokenizer_for(text) if short else self.load_whole().tokenizer
        tokenizer.encode_special_tokens = not parse_special
        return tokenizer

    def _encode(self, text: str, *, parse_special: bool) -> list[int]:
        tokenizer = self._tokenizer_for(text, parse_special=parse_special)
        # Only the functions for batches let other threads run: a long prompt must not stop a server for seconds.
        return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _single_id(self, token: str) -> int:
        ids = self._encode(token, parse_special=True)
        if len(ids) != 1:
            raise BadInputError(f"bos_token {token!r}: expected one token, got {len(ids)}")
        return ids[0]

    def _with_bos(self, ids: list[int]) -> list[int]:
        return ids if ids[:1] == [self.bos_id] else [self.bos_id, *ids]


class TextStream:
    """Turns tokens into text as they come; holds back the bytes of a character that is not complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What was held back: one U+FFFD for a character that never became complete."""
        return self._decoder.decode(b"", final=True)


class _WholeVocabulary:
    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise BadInputError(f"{path}: expected a tokenizer.json in the model folder")
        try:
            self.tokenizer = HfTokenizer.from_file(str(path))
        except Exception as error:  # `tokenizers` raises plain Exception for a malformed file
            raise BadInputError(f"{path}: expected a tokenizer ({error})") from None
        self.special_ids = frozenset(
            token_id for token_id, token in self.tokenizer.get_added_tokens_decoder().items() if token.special
        )

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def piece(self, token_id: int) -> str:
        piece = self.tokenizer.id_to_token(token_id)
        return "" if piece is None else piece  # 262,208 rows for 262,145 pieces


def token_text(value: Any) -> str:
    """tokenizer_config.json writes a token as its text or as an object with the text in `content`."""
    return value["content"] if isinstance(value, dict) else value


def stop_ids(directory: Path) -> list[int]:
    """`eos_token_id` of generation_config.json, else of config.json: one id or a list."""
    for name in ("generation_config.json", "config.json"):
        value = read_json(directory / name, default={}).get("eos_token_id")
        if value is not None:
            return [value] if isinstance(value, int) else list(value)
    return []


def read_json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """The object in a JSON file. Raises BadInputError unless it is one; `default` stands in for a missing file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if default is not None:
            return default
        raise BadInputError(f"{path}: expected a file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(f"{path}: expected JSON ({error})") from None
    if not isinstance(value, dict):
        raise BadInputError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value
