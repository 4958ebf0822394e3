"""The one error that handlers raise: an HTTP status and OpenAI's error object."""

from __future__ import annotations

from typing import Any

_TYPES = {401: "authentication_error", 404: "not_found_error", 500: "server_error", 503: "service_unavailable"}
_RETRY_AFTER_S = "5"


class RequestError(Exception):
    """Why a request is refused or failed. `param` names the field at fault, where one is."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        return {"Retry-After": _RETRY_AFTER_S} if self.status == 503 else {}


def unavailable(reason: str) -> RequestError:
    return RequestError(reason, status=503, code="unavailable")
