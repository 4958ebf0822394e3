"""Detokenisation and stop strings, piece by piece: nothing depends on how a text was cut."""

from __future__ import annotations

import math
import time

import pytest
from fake_engine import TokenLogprobs
from hypothesis import given
from hypothesis import strategies as st

from quaver.server.logprobs import CompletionLogprobs, chat_entry
from quaver.server.parsers import Piece
from quaver.server.text import OutputText, Special, StopMatcher
from quaver.tokenizer import Tokenizer

START_OF_TURN, END_OF_TURN = 105, 106


def cut(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """What StopMatcher shall do, written as a search over the whole text."""
    for end in range(1, len(text) + 1):
        here = [stop for stop in stops if text[:end].endswith(stop)]
        if here:
            stop = max(here, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(st.lists(st.text("abé", max_size=5), max_size=12), st.lists(st.text("abé", min_size=1, max_size=4), max_size=3),
       st.booleans())  # fmt: skip
def test_stop_strings_straddle_chunks(chunks: list[str], stops: list[str], include: bool) -> None:
    matcher = StopMatcher(stops, include)
    shown = ""
    for done, chunk in enumerate(chunks, start=1):
        shown += matcher.push(chunk)
        so_far = "".join(chunks[:done])
        if matcher.matched is None:  # what is held back is the longest possible beginning of a stop string, no more
            held = max((n for stop in stops for n in range(len(stop)) if so_far.endswith(stop[:n])), default=0)
            assert shown == so_far[: len(so_far) - held]
    shown += matcher.finish()
    assert (shown, matcher.matched) == cut("".join(chunks), stops, include)


def output_of(text: OutputText, tokens: list[int]) -> str:
    pieces = [piece for token in tokens for piece in text.push(token)] + text.finish()
    return "".join(piece.text for piece in pieces)


@given(st.text(max_size=20))
def test_no_character_is_broken(tiny_tokenizer: Tokenizer, text: str) -> None:
    tokens = tiny_tokenizer.encode_prompt(text, add_bos=False)
    output = OutputText(tiny_tokenizer, special=Special.TEXT)
    shown = ""
    for token in tokens:
        shown += "".join(piece.text for piece in output.push(token))
        assert text.replace("▁", " ").startswith(shown)
    assert shown == text.replace("▁", " ") and output.finish() == []


def test_incomplete_end_is_one_replacement_character(tiny_tokenizer: Tokenizer) -> None:
    tokens = tiny_tokenizer.encode_prompt("a😀", add_bos=False)
    for missing in (1, 2, 3):
        assert output_of(OutputText(tiny_tokenizer), tokens[:-missing]) == "a\ufffd"


def test_stop_string_of_a_replacement_character(tiny_tokenizer: Tokenizer) -> None:
    """What finish() adds is matched too."""
    tokens = tiny_tokenizer.encode_prompt("a😀", add_bos=False)[:-1]
    output = OutputText(tiny_tokenizer, stop=["a\ufffd"])
    assert output_of(output, tokens) == "" and output.stopped_at == "a\ufffd"


@pytest.mark.parametrize(("special", "expected"), [
    (Special.SKIP, [Piece("h"), Piece("e")]),
    (Special.TEXT, [Piece("h"), Piece("<end_of_turn>"), Piece("e")]),
    (Special.MARK, [Piece("h"), Piece("<end_of_turn>", is_special=True), Piece("e")]),
])  # fmt: skip
def test_special_tokens(tiny_tokenizer: Tokenizer, special: Special, expected: list[Piece]) -> None:
    h, e = (tiny_tokenizer.encode_prompt(letter, add_bos=False) for letter in "he")
    output = OutputText(tiny_tokenizer, special=special)
    assert [piece for token in [*h, END_OF_TURN, *e] for piece in output.push(token)] == expected


def test_a_marker_releases_what_was_held_back(tiny_tokenizer: Tokenizer) -> None:
    (h,) = tiny_tokenizer.encode_prompt("h", add_bos=False)
    output = OutputText(tiny_tokenizer, stop=["he"], special=Special.MARK)
    assert output.push(h) == []
    assert output.push(START_OF_TURN) == [Piece("h"), Piece("<start_of_turn>", is_special=True)]
    assert output.push(h) == [] and output.stopped_at is None


def test_min_tokens_keeps_stop_strings_off(tiny_tokenizer: Tokenizer) -> None:
    tokens = tiny_tokenizer.encode_prompt("hehehe", add_bos=False)
    output = OutputText(tiny_tokenizer, stop=["he"], min_tokens=2)
    assert len(tokens) == 3 and output_of(output, tokens) == "hehe"


def test_logprobs_in_json(tiny_tokenizer: Tokenizer) -> None:
    """Of tokens with the same name the higher value stays (padded ids have none); -inf and NaN are no JSON."""
    writer = CompletionLogprobs(tiny_tokenizer, show_special=False, offset=0)
    entry = writer.entry(1000, TokenLogprobs(1000, -2.0, 3, [(1001, -1.0), (4, -math.inf)]), last=True)
    assert entry == {
        "tokens": [""], "token_logprobs": [-2.0], "top_logprobs": [{"": -1.0, " ": -9999.0}], "text_offset": [0],
    }  # fmt: skip
    assert chat_entry(tiny_tokenizer, TokenLogprobs(4, math.nan, 1, []))["logprob"] == -9999.0


def test_work_for_a_token_does_not_grow(tiny_tokenizer: Tokenizer) -> None:
    (h,) = tiny_tokenizer.encode_prompt("h", add_bos=False)
    output = OutputText(tiny_tokenizer, stop=["h" * 1000 + "e", "hhx"])

    def seconds() -> float:
        start = time.thread_time()
        for _ in range(500):
            output.push(h)
        return time.thread_time() - start

    for _ in range(4):
        seconds()  # then the longest possible part is held back
    early = min(seconds() for _ in range(4))
    for _ in range(40):
        seconds()
    assert min(seconds() for _ in range(4)) < 3 * early
