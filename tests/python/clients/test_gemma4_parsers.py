"""Gemma 4's output format: reasoning, answer and tool calls, the same however the text is cut into pieces."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quaver.server.gemma4_parsers import CALL, CALL_END, CHANNEL, CHANNEL_END, QUOTE, ReasoningParser, ToolParser
from quaver.server.parsers import MARKERS as PARSED_MARKERS
from quaver.server.parsers import Piece
from quaver.server.text import OutputText, Special

MARKERS = (CHANNEL, CHANNEL_END, CALL, CALL_END, QUOTE, "<|tool_response>")
_MARKER = re.compile("(" + "|".join(map(re.escape, MARKERS)) + ")")


@dataclass
class Message:
    """What a client puts together from the deltas of a stream."""

    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)


def pieces_of(output: str) -> list[Piece]:
    return [Piece(part, part in MARKERS) for part in _MARKER.split(output) if part]


def cut(pieces: list[Piece], width: int) -> list[Piece]:
    """Text pieces in parts of `width` characters."""
    result = []
    for piece in pieces:
        parts = [piece.text] if piece.is_special else re.findall(f"(?s).{{1,{width}}}", piece.text)
        result += [Piece(part, piece.is_special) for part in parts]
    return result


def parse(pieces: list[Piece]) -> Message:
    message = Message()
    reasoning, tools = ReasoningParser(), ToolParser()
    steps = []
    for piece in pieces:
        thought, rest = reasoning.push(piece)
        assert not (thought and rest)
        message.reasoning += thought
        if rest is not None:
            steps.append(tools.push(rest))
    for text, deltas in [*steps, tools.finish()]:
        message.content += text
        for delta in deltas:
            if delta.name:
                assert delta.index == len(message.calls)
                message.calls.append({"name": delta.name, "arguments": ""})
            message.calls[delta.index]["arguments"] += delta.arguments
    return message


def call(output: str) -> tuple[str, Any]:
    message = parse(pieces_of(output))
    (only,) = message.calls
    assert message.content == ""
    return only["name"], json.loads(only["arguments"])


@pytest.mark.parametrize(("output", "reasoning", "content"), [
    ("Paris.", "", "Paris."),
    ("<|channel>thought\nEasy: Paris.\n<channel|>It is Paris.", "Easy: Paris.", "It is Paris."),
    ("<|channel>thought\n<channel|>It is Paris.", "", "It is Paris."),
    ("<|channel>thought\na\n\nb\n\n<channel|>\nc", "a\n\nb", "\nc"),
    ("<|channel>thought\nstill thinking", "still thinking", ""),
    ("<|channel>thou", "", ""),
    ("<|channel>thought\none\n<channel|>two<|channel>thought\nthree<channel|>four", "onethree", "twofour"),
    ("no <channel|>channel", "", "no channel"),
    ("call:f{a:1}", "", "call:f{a:1}"),
])  # fmt: skip
def test_reasoning(output: str, reasoning: str, content: str) -> None:
    assert parse(pieces_of(output)) == Message(reasoning, content)


@pytest.mark.parametrize(("arguments", "expected"), [
    ("", {}),
    ('city:<|"|>Paris<|"|>', {"city": "Paris"}),
    ('city:<|"|><|"|>', {"city": ""}),
    ('a:1,b:-2.5e-05,c:true,d:false', {"a": 1, "b": -2.5e-05, "c": True, "d": False}),
    ('e:null,f:None', {"e": None, "f": None}),
    ('list:[1,<|"|>x<|"|>,[],{}],o:{p:{q:[[2]]}}', {"list": [1, "x", [], {}], "o": {"p": {"q": [[2]]}}}),
    ('cmd:<|"|>echo {a, b} [c]: "d" \\ \n\t\u0001<|"|>', {"cmd": 'echo {a, b} [c]: "d" \\ \n\t\u0001'}),
    (' a : 1 , b : [ 2 , 3 ] ', {"a": 1, "b": [2, 3]}),
    ('<|"|>a key<|"|>:1', {"a key": 1}),
    ('url:http://x.org:80/,at:12:30', {"url": "http://x.org:80/", "at": "12:30"}),
    ('day:Monday,big:NaN', {"day": "Monday", "big": "NaN"}),
    ('s:"json",t:1', {"s": "json", "t": 1}),
    ('é:<|"|>😀<|"|>', {"é": "😀"}),
    # what a model may get wrong
    ('a:1,', {"a": 1}),
    ('a:1,,b:2', {"a": 1, "b": 2}),
    ('a,b:2', {"a": None, "b": 2}),
    ('a:,b:2', {"a": None, "b": 2}),
    ('<|"|>a<|"|>,b:2', {"a": None, "b": 2}),
    ('a:[1,2', {"a": [1, 2]}),
    ('a:{b:[<|"|>x<|"|>', {"a": {"b": ["x"]}}),
    ('a:{b:1],c:2', {"a": {"b": "1]", "c": 2}}),
    ('a:[{b:1],c:2', {"a": [{"b": 1}], "c": 2}),
    ('a:<|"|>x', {"a": "x}"}),
    ('a:<|"|>x<|"|> <|"|>y<|"|>,b:1', {"a": "x", "b": 1}),
    ('a:[1,]', {"a": [1]}),
    (']a:1', {"]a": 1}),
])  # fmt: skip
def test_arguments(arguments: str, expected: dict[str, Any]) -> None:
    assert call(f"<|tool_call>call:f{{{arguments}}}<tool_call|>") == ("f", expected)


def test_several_calls_with_reasoning_and_text() -> None:
    message = parse(pieces_of(
        "<|channel>thought\nI need both.\n<channel|>Let me look."
        '<|tool_call>call:get.time-2{zone:<|"|>CET<|"|>}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|><|tool_response>"
    ))  # fmt: skip
    assert message.reasoning == "I need both." and message.content == "Let me look."
    assert [(made["name"], json.loads(made["arguments"])) for made in message.calls] == [
        ("get.time-2", {"zone": "CET"}),
        ("now", {}),
    ]


@pytest.mark.parametrize(("output", "content", "calls"), [
    ("<|tool_call>what{a:1}<tool_call|>!", "what{a:1}!", 0),
    ("<|tool_call>call:{a:1}<tool_call|>", "call:{a:1}", 0),
    ("<|tool_call>call:f<tool_call|>", "call:f", 0),
    ("<|tool_call>call:f", "call:f", 0),
    ("<|tool_call>call:f{a:1}", "", 1),
    ("<|tool_call>call:f{a:1}<|tool_call>call:g{}<tool_call|>", "", 2),
    ("<|tool_call>call:f{a:1}, b<tool_call|> c", " c", 1),
    ("a<tool_call|>b", "ab", 0),
])  # fmt: skip
def test_calls_of_another_form(output: str, content: str, calls: int) -> None:
    message = parse(pieces_of(output))
    assert message.content == content and len(message.calls) == calls


def test_a_call_inside_an_open_channel_ends_it() -> None:
    message = parse(pieces_of("<|channel>thought\nHm<|tool_call>call:f{}<tool_call|>"))
    assert message == Message("Hm", "", [{"name": "f", "arguments": "{}"}])


def test_arguments_come_while_they_are_generated() -> None:
    tools = ToolParser()
    deltas = [
        [(delta.name, delta.arguments) for delta in tools.push(piece)[1]]
        for piece in pieces_of('<|tool_call>call:f{text:<|"|>ab')
    ]
    assert deltas == [[], [("f", '{"text":')], [("", '"')], [("", "ab")]]
    assert tools.push(Piece('c"'))[1][0].arguments == 'c\\"'
    assert tools.push(Piece(QUOTE, True))[1][0].arguments == '"'


def test_an_output_that_is_cut_off_keeps_what_came() -> None:
    (made,) = parse(pieces_of('<|tool_call>call:f{a:<|"|>long te')).calls
    assert made["arguments"] == '{"a":"long te'


class _GgufVocabulary:
    """As llama.cpp writes Gemma 4's: the markers are added tokens, but not special ones."""

    pieces = ("<turn|>", CHANNEL, "thought\n", "Hm", CHANNEL_END, "Yes")
    special_ids = frozenset({0})

    def piece(self, token_id: int) -> str:
        return self.pieces[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self.special_ids else self.pieces[token_id].encode()


def test_markers_that_the_vocabulary_does_not_call_special() -> None:
    assert {CHANNEL, CHANNEL_END, CALL, CALL_END, QUOTE} == PARSED_MARKERS
    text = OutputText(_GgufVocabulary(), special=Special.MARK)
    pieces = [piece for token_id in (1, 2, 3, 4, 5, 0) for piece in text.push(token_id)]
    assert parse(pieces) == Message("Hm", "Yes")


# The template's own notation, from values: what the model was trained on.
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_KEY = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEY, inner, max_size=4),
    max_leaves=8,
)


def written(value: Any) -> str:
    match value:
        case str():
            return f"{QUOTE}{value}{QUOTE}"
        case bool():
            return "true" if value else "false"
        case dict():
            return "{" + ",".join(f"{key}:{written(inner)}" for key, inner in sorted(value.items())) + "}"
        case list():
            return "[" + ",".join(map(written, value)) + "]"
        case _:
            return "null" if value is None else str(value)


@settings(max_examples=50)
@given(st.dictionaries(_KEY, _VALUE, max_size=5), st.integers(1, 5))
def test_what_the_template_writes_is_read_back(arguments: dict[str, Any], width: int) -> None:
    pieces = pieces_of(f"{CALL}call:f{written(arguments)}{CALL_END}")
    message = parse(cut(pieces, width))
    assert [(made["name"], json.loads(made["arguments"])) for made in message.calls] == [("f", arguments)]


_PIECES = st.lists(
    st.sampled_from([Piece(marker, True) for marker in MARKERS])
    | st.builds(Piece, st.text('ab1\n {}[],:"\\', min_size=1, max_size=8))
    | st.just(Piece("call:f{")) | st.just(Piece("thought\n")),
    max_size=24,
)  # fmt: skip


@given(_PIECES, st.integers(1, 4), st.data())
def test_any_split_gives_the_same(pieces: list[Piece], width: int, data: st.DataObject) -> None:
    """Also for outputs that follow no format; and a call that ended has arguments that are JSON."""
    whole = parse(pieces)
    assert parse(cut(pieces, width)) == whole
    joined = []
    for piece in pieces:
        if joined and not piece.is_special and not joined[-1].is_special and data.draw(st.booleans()):
            joined[-1] = Piece(joined[-1].text + piece.text)
        else:
            joined.append(piece)
    assert parse(joined) == whole
    ended = parse([*pieces, Piece(CALL_END, True)])
    assert all(isinstance(json.loads(made["arguments"]), dict) for made in ended.calls)
