"""Token ids, BOS, stop ids and decoding (known faults B31, B32). Golden ids come from SentencePiece."""

from __future__ import annotations

import hashlib
import json
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quaver.errors import BadInputError
from quaver.tokenizer import TextStream, Tokenizer, stop_ids, token_text
from quaver.tokenizer_index import MAX_CHARACTERS, TokenizerIndex

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tokenizer_gemma3.json").read_text())
BOS = 2


@pytest.fixture(scope="module")
def whole(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The same tokenizer without its index, as in a folder that transformers wrote."""
    folder = tmp_path_factory.mktemp("whole")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(model_dir / name)
    return Tokenizer(folder)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_ids_equal_sentencepiece(case: dict, tokenizer: Tokenizer, whole: Tokenizer) -> None:
    """B32: ids, not only round trips; through the index and through the whole vocabulary."""
    assert tokenizer.encode_prompt(case["text"])[1:] == case["ids"]
    assert whole.encode_prompt(case["text"])[1:] == case["ids"]
    if case["round_trip"] and "<" not in case["text"]:  # special tokens are not text
        assert tokenizer.decode(case["ids"]) == whole.decode(case["ids"]) == case["text"]


def test_a_megabyte_without_a_newline(tokenizer: Tokenizer) -> None:
    """B32: one 1 MB line; the time grows in proportion to the length, not to its square."""
    state, letters, characters = 12345, "etaoin shrdlu cmfwypvbgkqjxz ", []
    for _ in range(GOLDEN["long"]["length"]):
        state = (state * 1103515245 + 12345) % 2**31
        characters.append(letters[(state >> 16) % len(letters)])
    text = "".join(characters)
    tokenizer.encode_prompt(text[: MAX_CHARACTERS + 1])  # loads the vocabulary
    seconds = []
    for part in (text[: len(text) // 8], text):
        start = time.perf_counter()
        ids = tokenizer.encode_prompt(part)[1:]
        seconds.append(time.perf_counter() - start)
    assert hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest() == GOLDEN["long"]["ids_sha256"]
    assert seconds[1] < 8 * 3 * seconds[0]  # 8 is linear, 64 quadratic


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
def test_index_equals_the_whole_vocabulary(tokenizer: Tokenizer, whole: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_prompt(text)
    assert ids == whole.encode_prompt(text)
    if "▁" not in text and not any(i in whole.special_ids for i in ids[1:]):
        assert tokenizer.decode(ids) == text


@settings(max_examples=150, deadline=None)
@given(data=st.lists(st.integers(0, 255), max_size=12))
def test_streaming_never_splits_a_character(tokenizer: Tokenizer, data: list[int]) -> None:
    """Any bytes, valid UTF-8 or not: what the stream gives piece by piece is Python's own replacement decoding."""
    byte_ids = [238 + byte for byte in data]
    assert tokenizer.token_bytes(238) == b"\x00" and tokenizer.token_bytes(238 + 255) == b"\xff"
    stream = TextStream(tokenizer)
    pieces = [stream.push(token_id) for token_id in byte_ids]
    assert "".join([*pieces, stream.finish()]) == bytes(data).decode(errors="replace")


def test_incomplete_character_becomes_one_replacement(tokenizer: Tokenizer) -> None:
    smile = "😀".encode()
    assert tokenizer.decode(238 + byte for byte in smile) == "😀"
    for length in (1, 2, 3):
        assert tokenizer.decode(238 + byte for byte in smile[:length]) == "\ufffd"


def test_bos_exactly_once(tokenizer: Tokenizer) -> None:
    """B31: raw prompts, with and without a leading <bos> in the text."""
    assert tokenizer.encode_prompt("Hello") == [BOS, 9259]
    assert tokenizer.encode_prompt("<bos>Hello") == [BOS, 9259]
    assert tokenizer.encode_prompt("") == [BOS]


def test_special_tokens_are_not_text(tokenizer: Tokenizer) -> None:
    """B31: 106 and 1 leave no trace in the text; 107 is a newline and does."""
    assert tokenizer.decode([9259, 106, 1]) == "Hello"
    assert tokenizer.decode([9259, 107]) == "Hello\n"


@pytest.mark.parametrize(("generation", "config", "expected"), [
    ({"eos_token_id": [1, 106, 50]}, {"eos_token_id": 1}, [1, 106, 50]),
    ({}, {"eos_token_id": 1}, [1]),
    (None, {"eos_token_id": [1, 106]}, [1, 106]),
    (None, {}, []),
])  # fmt: skip
def test_stop_ids(tmp_path: Path, generation: dict | None, config: dict, expected: list[int]) -> None:
    """B31: every id of the list, and generation_config.json before config.json."""
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert stop_ids(tmp_path) == expected


def test_stop_ids_of_the_real_model(model_dir: Path) -> None:
    assert stop_ids(model_dir) == [1, 106]


def test_token_written_as_an_object() -> None:
    assert token_text({"content": "<bos>", "lstrip": False}) == token_text("<bos>") == "<bos>"


def test_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadInputError, match="surrogates"):
        tokenizer.encode_prompt("a\ud800")


@pytest.mark.parametrize("content", [b"", b"QVTOK\x01\x00\x00", b"x" * 100])
def test_a_file_that_is_no_index(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "index").write_bytes(content)
    with pytest.raises(BadInputError, match="tokenizer index"):
        TokenizerIndex(tmp_path / "index")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {}}'])
def test_malformed_tokenizer_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(BadInputError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)
