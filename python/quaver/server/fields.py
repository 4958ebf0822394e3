"""Checks of JSON values. A request is a dataclass whose fields are Annotated[type, check]; a check takes (name, value)
and returns what the field becomes, or raises RequestError with the name, the value and what was expected."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NoReturn, TypeVar, get_type_hints

from quaver.server.errors import RequestError

Check = Callable[[str, Any], Any]
Parsed = TypeVar("Parsed")

MAX_DEPTH = 64  # no request needs more; Python's own limit, near 1,000, is met at a different depth in every function


def parse_json(body: bytes) -> dict[str, Any]:
    """The object in a request body; every string in it can be encoded as UTF-8."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"body: expected UTF-8, byte {error.start} is not") from None
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise RequestError(f"body: expected JSON nested at most {MAX_DEPTH} deep") from None
    except ValueError as error:
        raise RequestError(f"body: expected JSON ({error})") from None
    if not isinstance(value, dict):
        raise RequestError(f"body {show(value)}: expected a JSON object")
    _check_tree(value, look_for_surrogates="\\ud" in text.lower())
    return value


def parse(kind: type[Parsed], body: Mapping[str, Any], defaults: Mapping[str, Any]) -> Parsed:
    """A request from its JSON object: null or a missing field is the default, unknown fields are ignored."""
    values = {}
    for name, check in _checks(kind).items():
        if (value := body.get(name)) is not None:
            values[name] = check(name, value)
        elif name in defaults:
            values[name] = defaults[name]
        elif name in _required(kind):
            fail(name, None, "a value, it is required")
    return kind(**values)


def refuse_unsupported(body: Mapping[str, Any], harmless: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuses known fields that would change the answer and that this server does not honour."""
    for name in body.keys() & harmless.keys():
        value = body[name]
        if value is not None and not any(type(value) is type(ok) and value == ok for ok in harmless[name]):
            allowed = " or ".join(json.dumps(ok) for ok in (None, *harmless[name]))
            fail(name, value, f"{allowed}, this server does not support it")


def fail(name: str, value: Any, expected: str) -> NoReturn:
    raise RequestError(f"{name} {show(value)}: expected {expected}", name)


def show(value: Any) -> str:
    """A value as JSON writes it, shortened; containers by their kind."""
    if isinstance(value, (list, dict)):
        kind = "array" if isinstance(value, list) else "object"
        return f"({kind} of {len(value)})"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"(integer of {value.bit_length()} bits)"
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def integer(low: int, high: int) -> Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            fail(name, value, f"an integer from {low} to {high}")
        return value

    return check


def number(low: float, high: float = math.inf, *, above_low: bool = False) -> Check:
    """A finite number in [low, high]; in (low, high] with `above_low`."""
    interval = f"above {low:g}" if above_low else f"{low:g} or more" if high == math.inf else f"from {low:g}"
    interval += "" if high == math.inf else f" to {high:g}" if not above_low else f", at most {high:g}"

    def check(name: str, value: Any) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
        if not is_number or not low <= value <= high or (above_low and value == low):
            fail(name, value, f"a number {interval}")
        return float(value)

    return check


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        fail(name, value, "true or false")
    return value


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        fail(name, value, "a string")
    return value


def json_object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        fail(name, value, "an object")
    return value


def one_of(*options: str) -> Check:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            fail(name, value, f"one of {', '.join(options)}")
        return value

    return check


def list_of(check_item: Check, *, at_least: int = 0, at_most: int = 1 << 24) -> Check:
    def check(name: str, value: Any) -> list[Any]:
        if not isinstance(value, list) or not at_least <= len(value) <= at_most:
            fail(name, value, f"an array of {at_least} to {at_most} items")
        return [check_item(f"{name}[{index}]", item) for index, item in enumerate(value)]

    return check


def token_ids(name: str, value: Any) -> list[int]:
    """Ids; the engine knows the vocabulary and checks their range."""
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 1 << 31 for item in value):
        fail(name, value, "an array of token ids")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _refuse_surrogates(what: str, path: str, text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise RequestError(f"{what} {show(text)}: expected Unicode without lone surrogates", path or None)


def _check_tree(body: dict[str, Any], *, look_for_surrogates: bool) -> None:
    stack: list[tuple[str, int, Any]] = [("", 0, body)]
    while stack:
        path, depth, value = stack.pop()
        if isinstance(value, str):
            if look_for_surrogates:
                _refuse_surrogates(path, path, value)
            continue
        if depth > MAX_DEPTH:
            raise RequestError(f"body: expected JSON nested at most {MAX_DEPTH} deep")
        if isinstance(value, dict):
            for key, item in value.items():
                if look_for_surrogates:  # at once: paths are made of keys
                    _refuse_surrogates(f"a key in {path or 'the body'}", path, key)
                if isinstance(item, (str, list, dict)):
                    stack.append((f"{path}.{key}" if path else key, depth + 1, item))
        else:
            stack += [
                (f"{path}[{index}]", depth + 1, item)
                for index, item in enumerate(value)
                if isinstance(item, (str, list, dict))
            ]


@cache
def _checks(kind: type) -> dict[str, Check]:
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(kind, include_extras=True).items()}


@cache
def _required(kind: type) -> frozenset[str]:
    missing = dataclasses.MISSING
    return frozenset(
        field.name
        for field in dataclasses.fields(kind)
        if field.default is missing and field.default_factory is missing
    )
