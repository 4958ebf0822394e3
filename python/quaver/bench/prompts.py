"""The random data set of `vllm bench serve`: prompts of an exact number of tokens that share no prefix.

Runs of consecutive ids become text, and the text is cut or lengthened until the server's tokenizer makes exactly the
number of tokens that was asked for, <bos> included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from quaver.bench.server_api import ServerApi
from quaver.errors import BadInputError
from quaver.tokenizer import Tokenizer

_ATTEMPTS = 20  # text and ids agree after one to three rounds; ids that never do are a broken tokenizer


@dataclass(frozen=True)
class Prompt:
    text: str
    ids: list[int]  # with <bos>
    output_len: int

    @property
    def input_len(self) -> int:
        return len(self.ids)


class Codec(Protocol):
    prefix: list[int]  # what the server puts in front of a prompt: <bos>

    def encode(self, text: str) -> list[int]: ...  # without `prefix`
    def decode(self, ids: list[int]) -> str: ...
    def random_ids(self, count: int, rng: np.random.Generator) -> list[int]: ...


class LocalCodec:
    """The tokenizer of a model folder on this machine."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = Tokenizer(directory)
        self._tokenizer.load_whole()
        self.prefix = [self._tokenizer.bos_id]

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode_prompt(text)[1:]

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids)

    def random_ids(self, count: int, rng: np.random.Generator) -> list[int]:
        """`count` consecutive ids of whole text pieces, from a random place on, round the end of the vocabulary."""
        size = self._tokenizer.vocab_size
        ids: list[int] = []
        candidate = int(rng.integers(size))
        for _ in range(2 * count + size):
            if len(ids) == count:
                return ids
            if _is_text(self._tokenizer.token_bytes(candidate)):
                ids.append(candidate)
            candidate = (candidate + 1) % size
        raise BadInputError(f"vocabulary of {size}: expected pieces of text in it")


class ServerCodec:
    """The server's own /tokenize and /detokenize, for a machine that has no copy of the model folder."""

    def __init__(self, api: ServerApi, model: str) -> None:
        self._api, self._model = api, model
        whole = self._tokenize("a", add_special_tokens=True)
        self.prefix = whole[: len(whole) - len(self.encode("a"))]

    def encode(self, text: str) -> list[int]:
        return self._tokenize(text, add_special_tokens=False)

    def decode(self, ids: list[int]) -> str:
        return str(self._api.post("/detokenize", {"model": self._model, "tokens": ids})["prompt"])

    def random_ids(self, count: int, rng: np.random.Generator) -> list[int]:
        letters = rng.integers(ord("a"), ord("z") + 1, size=(count, 6), dtype=np.uint8)
        return self.encode(" ".join(word.tobytes().decode() for word in letters))[:count]

    def _tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        body = {"model": self._model, "prompt": text, "add_special_tokens": add_special_tokens}
        return list(self._api.post("/tokenize", body)["tokens"])


def random_prompts(
    codec: Codec, count: int, input_len: int, output_len: int, range_ratio: float, seed: int
) -> list[Prompt]:
    """Lengths are uniform in [len x (1 - range_ratio), len x (1 + range_ratio)], both ends included."""
    if not 0 <= range_ratio < 1:
        raise BadInputError(f"--random-range-ratio {range_ratio}: expected 0 to less than 1")
    shortest = len(codec.prefix) + 1
    if math.floor(input_len * (1 - range_ratio)) < shortest:
        raise BadInputError(f"--random-input-len {input_len}: expected at least {shortest} tokens a prompt")
    rng = np.random.default_rng(seed)
    input_lens = _lengths(input_len, range_ratio, count, rng)
    output_lens = _lengths(output_len, range_ratio, count, rng)
    return [_fit(codec, int(wanted), int(answer), rng) for wanted, answer in zip(input_lens, output_lens, strict=True)]


def _lengths(mean: int, range_ratio: float, count: int, rng: np.random.Generator) -> np.ndarray:
    low, high = math.floor(mean * (1 - range_ratio)), math.ceil(mean * (1 + range_ratio))
    return rng.integers(max(low, 1), max(high, 1), size=count, endpoint=True)


def _fit(codec: Codec, input_len: int, output_len: int, rng: np.random.Generator) -> Prompt:
    wanted = input_len - len(codec.prefix)
    ids = codec.random_ids(wanted, rng)
    for _ in range(_ATTEMPTS):
        text = codec.decode(ids)
        ids = codec.encode(text)
        if len(ids) == wanted:
            return Prompt(text, codec.prefix + ids, output_len)
        ids = ids[:wanted]
        if len(ids) < wanted:
            ids += codec.random_ids(wanted - len(ids), rng)
    raise BadInputError(f"tokenizer: expected text of exactly {wanted} tokens, got none in {_ATTEMPTS} attempts")


def _is_text(data: bytes) -> bool:
    try:
        return bool(data.decode())
    except UnicodeDecodeError:
        return False
