"""Error responses in OpenAI's format: {"error": {"message", "type", "param", "code"}}.

A message says what is wrong and what to do, and starts with the field's name where there is one.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from qkv.serving.engine.generation_request import RequestRefused
from qkv.serving.error_log import log_unexpected
from qkv.serving.http.schema.openai_schema import UNSUPPORTED, WITHOUT_EFFECT

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}
CODES = {
    401: "invalid_api_key",
    404: "not_found",
    408: "timeout",
    413: "too_large",
    429: "queue_full",
    500: "internal_error",
}
MESSAGES = {
    400: "body: cannot be read; expected JSON in UTF-8, not nested too deeply",
    404: "this address does not exist; GET /openapi.json lists all routes",
    405: "this address does not support the method; GET /openapi.json lists all routes",
}
RETRY_AFTER = {429: 1.0, 503: 1.0}
INTERNAL_ERROR = (
    "an unexpected error occurred in the server; your request is not at fault, and other "
    "requests are not affected"
)
FIELD_NAME = re.compile(r"(?!(?:str|int|float|bool|dict|list|none|nullable)$)[a-z_]+")
"""Name of a nested field; pydantic also names the types that it tried."""
MAX_NAME = 60
"""Characters of a client's field name that are repeated in a message."""
MAX_EXPECTATIONS = 4


def to_json(value: Any) -> bytes:
    """A value as JSON in UTF-8; a lone surrogate, which UTF-8 lacks, as JSON's escape."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def text_json(text: str) -> bytes:
    """A text as JSON, as `to_json` writes it."""
    return encode_basestring(text).encode("utf-8", "backslashreplace")


class Json(Response):
    """A response in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


def error_response(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    retry_after: float | None = None,
    headers: dict[str, str] | None = None,
) -> Json:
    """An error response; type and code follow from the status unless a code is given."""
    headers = dict(headers or {})
    if retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after)))

    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"

    default_type = "invalid_request_error" if status < 500 else "server_error"
    error = {
        "message": message,
        "type": TYPES.get(status, default_type),
        "param": param,
        "code": code or CODES.get(status),
    }
    return Json({"error": error}, status, headers)


def exception_response(error: BaseException) -> Json:
    """The response to an exception; an unexpected one is logged and its details are not sent."""
    if isinstance(error, RequestRefused):
        details: dict[str, Any] = {}
        if error.status == 404:
            details = {"code": "model_not_found", "param": "model"}

        retry_after = error.retry_after or RETRY_AFTER.get(error.status)
        return error_response(error.status, str(error), retry_after=retry_after, **details)

    if isinstance(error, ValueError):
        message = str(error)
        field, colon, _ = message.partition(": ")
        param = None
        if colon and field.replace("_", "").isalnum():
            param = field

        return error_response(400, message, param=param)

    log_unexpected(error)

    return error_response(500, INTERNAL_ERROR)


def add_exception_handlers(app: FastAPI) -> None:
    """Turn every exception of a route into an error response."""

    async def on_exception(request: Request, error: Exception) -> Json:
        request.scope["logged"] = True  # Starlette raises an unexpected one again
        return exception_response(error)

    async def on_invalid_body(request: Request, error: Any) -> Json:
        message, param = validation_message(error.errors(), known_fields(request))
        return error_response(400, message, param=param)

    async def on_http_exception(request: Request, error: Any) -> Json:
        message = MESSAGES.get(error.status_code, "the request was refused")
        return error_response(error.status_code, message, headers=dict(error.headers or {}))

    app.add_exception_handler(RequestRefused, on_exception)
    app.add_exception_handler(ValueError, on_exception)
    app.add_exception_handler(Exception, on_exception)
    app.add_exception_handler(RequestValidationError, on_invalid_body)
    app.add_exception_handler(HTTPException, on_http_exception)


def validation_message(errors: Sequence[Any], known: Sequence[str]) -> tuple[str, str | None]:
    """One sentence about the first invalid field, and its name.

    The value is never repeated: it may be of any size.
    """
    first = errors[0]
    location = list(map(str, first["loc"]))
    if first["type"] == "json_invalid":
        detail = f"{first['ctx']['error']} at character {location[-1]}"
        return f"the request body is not valid JSON ({detail})", None

    if len(location) < 2:
        return body_message(first)

    field = location[1]
    name = field[:MAX_NAME]
    if first["type"] == "extra_forbidden" and len(location) == 2:
        return f"{name}: {unknown_field_hint(name, known)}", name

    expectations: dict[str, None] = {}
    for error in errors:
        if len(error["loc"]) > 1 and str(error["loc"][1]) == field:
            expectations[expectation(error)] = None

    if list(expectations) == [UNSUPPORTED]:
        return f"{name} is {UNSUPPORTED}", name

    return f"{name}: {', or '.join(list(expectations)[:MAX_EXPECTATIONS])}", name


def body_message(error: Any) -> tuple[str, str | None]:
    """The sentence about a fault of the whole body."""
    if error["type"] in ("string_unicode", "invalid_key"):
        return "body: unknown field; one of its names is not valid text", None
    if error["type"] != "value_error":
        return "body: expected a JSON object, with content-type: application/json", None

    message = error["msg"].removeprefix("Value error, ")
    return message, message.partition(":")[0]


def unknown_field_hint(name: str, known: Sequence[str]) -> str:
    """What to do about a field that does not exist."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"unknown field; did you mean {close[0]}?"

    return f"unknown field; remove it; the fields are {', '.join(known)}"


def expectation(error: Any) -> str:
    """What a field should be, and where inside it the fault is."""
    kind = error["type"]
    at = nested_location(error)
    if kind == "missing":
        return f"this field is missing{at}"
    if kind == "extra_forbidden":
        return f"unknown field; remove it{at}"
    if kind == "none_required" or error.get("ctx", {}).get("max_length") == 0:
        return f"{UNSUPPORTED}{at}"
    if kind == "string_pattern_mismatch":  # only heads_off has a pattern
        return f'expected such as "3.5", head 5 of layer 3, or "2.*"{at}'

    message = str(error["msg"]).removeprefix("Value error, ").replace(" after validation", "")
    for begin in ("Input should ", "String should ", "List should ", "Value should "):
        if message.startswith(begin):
            return f"it should {message.removeprefix(begin)}{at}"

    return message


def nested_location(error: Any) -> str:
    """The path inside a field, as " (at 0.role)"; empty for the field itself."""
    parts: list[str] = []
    for part in error["loc"][2:]:
        if isinstance(part, int) or FIELD_NAME.fullmatch(str(part)):
            parts.append(str(part)[:MAX_NAME])

    return f" (at {'.'.join(parts)})" if parts else ""


def known_fields(request: Request) -> list[str]:
    """Fields of the route's body: required ones first, then its own, then the common ones.

    Fields without effect are accepted, but not suggested.
    """
    field = getattr(request.scope.get("route"), "body_field", None)
    kind = getattr(getattr(field, "field_info", None), "annotation", None)
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return []

    own_fields = kind.__annotations__

    def rank(name: str) -> int:
        if kind.model_fields[name].is_required():
            return 0

        return 1 if name in own_fields else 2

    return sorted((name for name in kind.model_fields if name not in WITHOUT_EFFECT), key=rank)
