"""The server's small JSON endpoints, asked one at a time before the clock runs: models, tokenize, detokenize."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

from quaver.errors import BadInputError

_TIMEOUT_S = 60.0


class ServerApi:
    def __init__(self, base_url: str, api_key: str) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise BadInputError(f"--base-url {base_url}: expected http://HOST:PORT or https://…")
        self.base_url = base_url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def get(self, path: str) -> dict[str, Any]:
        return self._call(path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._call(path, json.dumps(body).encode())

    def wait_until_ready(self, timeout_s: float) -> None:
        """Asks for the models until the server answers; raises BadInputError when it does not within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.get("/v1/models")
            except BadInputError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def first_model(self) -> str:
        models = self.get("/v1/models").get("data")
        if not isinstance(models, list) or not models:
            raise BadInputError(f"{self.base_url}/v1/models: expected a model in data")
        return str(models[0]["id"])

    def _call(self, path: str, body: bytes | None) -> dict[str, Any]:
        headers = self.headers | {"Content-Type": "application/json"}
        request = urllib.request.Request(self.base_url + path, data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise BadInputError(f"{self.base_url}{path}: HTTP {error.code}, {error_message(error.read())}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise BadInputError(f"{self.base_url}{path}: expected a server's JSON there ({error})") from None
        if not isinstance(answer, dict):
            raise BadInputError(f"{self.base_url}{path}: expected a JSON object, got {type(answer).__name__}")
        return answer


def error_message(body: bytes) -> str:
    """The `message` of an OpenAI error object, else the beginning of the body."""
    try:
        answer = json.loads(body)
        error = answer.get("error", answer)
        return str(error["message"])
    except (ValueError, AttributeError, KeyError, TypeError):
        return body[:200].decode(errors="replace") or "no message"
