"""What splits a model's raw output into reasoning, answer and tool calls; one module per output format.

A parser sees the output piece by piece as tokens come, so whatever it returns can be streamed at once. Special tokens
(<|channel>, <|tool_call>, …) arrive as pieces of their own and never mixed with text, so a parser needs no search in
text and text cannot forge a marker.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from quaver.errors import BadInputError

# Tokens that parsers look for. GGUF files keep them as ordinary added tokens, so being special is not enough to know.
MARKERS = frozenset({"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'})


class Piece(NamedTuple):
    """Text as it was generated, of any length, or one special token by its name."""

    text: str
    is_special: bool = False


@dataclass(frozen=True)
class ToolCallDelta:
    """A further part of one tool call, in the shape in which OpenAI streams it."""

    index: int  # 0, 1, … in the order of the calls of a message
    name: str = ""  # whole, in the first delta of a call, and only there
    arguments: str = ""  # the JSON text of the arguments object is the concatenation over a call's deltas


class ReasoningParser(Protocol):
    """Takes the reasoning out of one message. Made anew for each message: ReasoningParser()."""

    def push(self, piece: Piece) -> tuple[str, Piece | None]:
        """(reasoning text, what remains as answer): at most one of the two is filled, none for markers."""
        ...


class ToolParser(Protocol):
    """Takes the tool calls out of one message, from what the reasoning parser left. Made anew for each message."""

    def push(self, piece: Piece) -> tuple[str, list[ToolCallDelta]]:
        """(answer text, tool call deltas). Special tokens that are no markers of calls give nothing."""
        ...

    def finish(self) -> tuple[str, list[ToolCallDelta]]:
        """What is left when the output ends, perhaps amid a call."""
        ...


NAMES = ("gemma4",)  # quaver.server.<name>_parsers has a ReasoningParser and a ToolParser


def reasoning_parser(name: str) -> type[ReasoningParser]:
    return _module(name).ReasoningParser


def tool_parser(name: str) -> type[ToolParser]:
    return _module(name).ToolParser


def _module(name: str) -> object:
    if name not in NAMES:
        raise BadInputError(f"parser {name}: expected one of {', '.join(NAMES)}")
    return importlib.import_module(f"quaver.server.{name}_parsers")
