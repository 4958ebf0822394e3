"""Gemma 4's thinking channel and tool calls, token by token. The format is that of its chat template:

    <|channel>thought\\nREASONING\\n<channel|>ANSWER
    <|tool_call>call:NAME{key:<|"|>text<|"|>,count:3,flags:[true,null],nested:{key:1.5}}<tool_call|>

Keys are bare, strings stand between <|"|> tokens without any escape, everything else is written as in JSON. What a
parser returns, put together, does not depend on how the text is cut into pieces.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from typing import NoReturn

from quaver.server.parsers import Piece, ToolCallDelta

CHANNEL, CHANNEL_END = "<|channel>", "<channel|>"
CALL, CALL_END = "<|tool_call>", "<tool_call|>"
QUOTE = '<|"|>'


class ReasoningParser:
    """Text in a channel is reasoning; the channel's name (up to the first newline) and its last newlines are not."""

    def __init__(self) -> None:
        self._in_channel = False
        self._in_name = False
        self._newlines = ""  # shown once more text follows them

    def push(self, piece: Piece) -> tuple[str, Piece | None]:
        if piece == (CHANNEL, True):
            self._in_channel = self._in_name = True
            self._newlines = ""
            return "", None
        if piece == (CHANNEL_END, True):
            self._in_channel = False
            return "", None
        if piece in ((CALL, True), (CALL_END, True)):
            self._in_channel = False  # a call is no thought, even if the model forgot to end the channel
        if not self._in_channel:
            return "", piece
        return ("" if piece.is_special else self._reasoning(piece.text)), None

    def _reasoning(self, text: str) -> str:
        if self._in_name:
            _, newline, text = text.partition("\n")
            self._in_name = not newline
        text = self._newlines + text
        shown = text.rstrip("\n")
        self._newlines = text[len(shown) :]
        return shown


class ToolParser:
    """Streams the arguments of a call as JSON while they are generated. A call that begins otherwise than call:NAME{ is
    shown as text."""

    def __init__(self) -> None:
        self._num_calls = 0
        self._head: str | None = None  # text of a call up to its first brace
        self._arguments: _Arguments | None = None

    def push(self, piece: Piece) -> tuple[str, list[ToolCallDelta]]:
        if piece == (CALL, True):
            text, deltas = self._close()  # a call without an end
            self._head = ""
            return text, deltas
        if piece == (CALL_END, True):
            return self._close()
        if self._arguments is not None:
            return "", self._delta(self._arguments.push(piece))
        text = "" if piece.is_special else piece.text
        if self._head is None:
            return text, []
        self._head += text
        return "", self._begin()

    def finish(self) -> tuple[str, list[ToolCallDelta]]:
        """The arguments of an unfinished call stay as far as they came."""
        self._arguments = None
        return self._close()

    def _begin(self) -> list[ToolCallDelta]:
        before, brace, rest = (self._head or "").partition("{")
        prefix, _, name = before.partition(":")
        if not brace or prefix.strip() != "call" or not name.strip():
            return []
        self._head = None
        self._arguments = _Arguments()
        self._num_calls += 1
        arguments = "{" + self._arguments.push(Piece(rest))
        return [ToolCallDelta(self._num_calls - 1, name.strip(), arguments)]

    def _close(self) -> tuple[str, list[ToolCallDelta]]:
        head, self._head = self._head or "", None
        arguments, self._arguments = self._arguments, None
        return head, self._delta(arguments.close()) if arguments else []

    def _delta(self, arguments: str) -> list[ToolCallDelta]:
        return [ToolCallDelta(self._num_calls - 1, arguments=arguments)] if arguments else []


class _Expects(Enum):
    """What may come next in an object or array."""

    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


@dataclass
class _Container:
    is_object: bool
    expects: _Expects
    is_empty: bool = True


def _container(brace: str) -> _Container:
    return _Container(True, _Expects.KEY) if brace == "{" else _Container(False, _Expects.VALUE)


class _Arguments:
    """Gemma's notation after the first brace → JSON text. Whatever comes, what close() completes is valid JSON: a key
    without a value gets null, and what has no place is left out."""

    def __init__(self) -> None:
        self._open = [_container("{")]
        self._word = ""  # a bare key, number, true, … as far as it came
        self._in_string = False
        self._string_counts = False  # it stands where a string may stand
        self._json = ""  # not yet returned

    def push(self, piece: Piece) -> str:
        if piece == (QUOTE, True):
            self._quote()
        elif piece.is_special:
            pass
        elif not self._in_string:
            for character in piece.text:
                self._structure(character)
        elif self._string_counts:
            self._json += json.dumps(piece.text, ensure_ascii=False)[1:-1]
        return self._take()

    def close(self) -> str:
        if self._in_string:
            self._quote()
        while self._open:
            self._end_containers(is_object=True)
        return self._take()

    def _take(self) -> str:
        text, self._json = self._json, ""
        return text

    def _quote(self) -> None:
        self._in_string = not self._in_string
        self._word = ""
        if self._in_string:
            self._string_counts = bool(self._open) and self._open[-1].expects in (_Expects.KEY, _Expects.VALUE)
            if self._string_counts:
                self._begin_element()
                self._json += '"'
        elif self._string_counts:
            top = self._open[-1]
            top.expects = _Expects.COLON if top.expects is _Expects.KEY else _Expects.COMMA
            self._json += '"'

    def _structure(self, character: str) -> None:
        if not self._open:
            return  # after the last brace
        top = self._open[-1]
        if character == ":" and top.expects in (_Expects.KEY, _Expects.COLON):
            self._end_key()
        elif character == ",":
            self._end_element()
            top.expects = _Expects.KEY if top.is_object else _Expects.VALUE
        elif character in "}]" and any(container.is_object == (character == "}") for container in self._open):
            self._end_containers(is_object=character == "}")
        elif character in "{[" and top.expects is _Expects.VALUE and not self._word.strip():
            self._begin_element()
            self._json += character
            self._open.append(_container(character))
            self._word = ""
        else:
            self._word += character

    def _begin_element(self) -> None:
        """Before a key, or a value of an array."""
        top = self._open[-1]
        if top.is_object and top.expects is _Expects.VALUE:
            return
        self._json += "" if top.is_empty else ","
        top.is_empty = False

    def _end_key(self) -> None:
        top = self._open[-1]
        if top.expects is _Expects.KEY:
            self._begin_element()
            self._json += json.dumps(self._word.strip(), ensure_ascii=False)
        self._json += ":"
        top.expects = _Expects.VALUE
        self._word = ""

    def _end_element(self) -> None:
        top = self._open[-1]
        word, self._word = self._word.strip(), ""
        if top.expects is _Expects.KEY and word:
            self._begin_element()
            self._json += json.dumps(word, ensure_ascii=False) + ":null"
        elif top.expects is _Expects.COLON:
            self._json += ":null"
        elif top.expects is _Expects.VALUE and (word or top.is_object):
            self._begin_element()
            self._json += _scalar(word)
        top.expects = _Expects.COMMA

    def _end_containers(self, *, is_object: bool) -> None:
        """The innermost object or array, with all that is still open in it."""
        ended = None
        while ended is None or ended.is_object != is_object:
            self._end_element()
            ended = self._open.pop()
            self._json += "}" if ended.is_object else "]"
            if self._open:
                self._open[-1].expects = _Expects.COMMA


def _scalar(word: str) -> str:
    """A bare value as JSON: numbers, true, false and null as they are, anything else as a string."""
    if word in ("", "None"):
        return "null"
    try:
        json.loads(word, parse_constant=_refuse)
    except ValueError:
        return json.dumps(word, ensure_ascii=False)
    return word


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)  # NaN and Infinity, which Python would take for JSON
