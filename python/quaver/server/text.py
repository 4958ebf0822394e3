"""Tokens → the text that a client sees, as they come. The work for a token does not grow with the text before it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from quaver.server.parsers import MARKERS, Piece
from quaver.tokenizer import TextStream, Tokenizer


class Special(Enum):
    """What becomes of special tokens (<end_of_turn>, …)."""

    SKIP = "skip"
    TEXT = "text"  # they are shown as text
    MARK = "mark"  # they are pieces of their own, for the parsers


class OutputText:
    """The text of one choice. Holds back what may turn out to be the beginning of a stop string or is not yet a whole
    character; the pieces put together do not depend on how the text was cut into tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        special: Special = Special.SKIP,
    ) -> None:
        self._tokenizer = tokenizer
        self._characters = TextStream(tokenizer)
        self._stop = StopMatcher(stop, include_stop)
        self._tokens_without_stop = min_tokens  # stop strings count only after so many tokens
        self._special = special

    @property
    def stopped_at(self) -> str | None:
        """The stop string that ended the text."""
        return self._stop.matched

    def push(self, token_id: int) -> list[Piece]:
        if self._special is Special.MARK:
            name = self._tokenizer.piece(token_id)
            if token_id in self._tokenizer.special_ids or name in MARKERS:
                return [*self.finish(), Piece(name, is_special=True)]
        if self._special is Special.TEXT and token_id in self._tokenizer.special_ids:
            text = self._characters.finish() + self._tokenizer.piece(token_id)
        else:
            text = self._characters.push(token_id)
        if self._tokens_without_stop > 0:
            self._tokens_without_stop -= 1
            return _pieces(text)
        return _pieces(self._stop.push(text))

    def finish(self) -> list[Piece]:
        """What was held back; a character that never became complete is one U+FFFD."""
        return _pieces(self._stop.push(self._characters.finish()) + self._stop.finish())


class StopMatcher:
    """Cuts a text at the first place where a stop string is complete (the longest of those that end there)."""

    def __init__(self, stops: Sequence[str], include_stop: bool) -> None:
        self.matched: str | None = None
        self._prefixes = [_PrefixAutomaton(stop) for stop in stops]
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str) -> str:
        """The part of the text so far that is certain to be shown and has not been returned yet."""
        if self.matched is not None:
            return ""
        if not self._prefixes:
            return text
        known = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            complete = [prefix.word for prefix in self._prefixes if prefix.advance(character)]
            if complete:
                self.matched = max(complete, key=len)
                self._held = ""
                return known[: end if self._include_stop else end - len(self.matched)]
        shown = len(known) - max(prefix.length for prefix in self._prefixes)
        self._held = known[shown:]
        return known[:shown]

    def finish(self) -> str:
        held, self._held = self._held, ""
        for prefix in self._prefixes:
            prefix.length = 0
        return held


class _PrefixAutomaton:
    """How much of `word` the text ends with (Knuth, Morris and Pratt): constant time a character, amortised."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.length = 0
        self._fallback = [0] * (len(word) + 1)  # [n]: the longest proper prefix that word[:n] ends with
        length = 0
        for end in range(1, len(word)):
            while length and word[end] != word[length]:
                length = self._fallback[length]
            length += word[end] == word[length]
            self._fallback[end + 1] = length

    def advance(self, character: str) -> bool:
        while self.length and self.word[self.length] != character:
            self.length = self._fallback[self.length]
        self.length += self.word[self.length] == character
        return self.length == len(self.word)


def _pieces(text: str) -> list[Piece]:
    return [Piece(text)] if text else []
