"""Reads server-sent events as strictly as the format is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2


def stream(client: httpx2.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The JSON objects of a whole stream."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(events(response))


def events(response: httpx2.Response) -> Iterator[dict[str, Any]]:
    """Objects until [DONE], after which nothing may come."""
    done = False
    buffer = b""
    for chunk in response.iter_bytes():
        buffer += chunk
        *whole, buffer = buffer.split(b"\n\n")
        for event in whole:
            assert not done and event.startswith(b"data: ") and b"\n" not in event
            data = event.removeprefix(b"data: ").decode("utf-8")
            done = data == "[DONE]"
            if not done:
                yield json.loads(data)
    assert done and buffer == b""


def joined_text(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The text or content of one choice."""
    parts = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(part["text"] if "text" in part else part["delta"].get("content", "") for part in parts)
