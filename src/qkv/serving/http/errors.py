"""Everything that goes wrong, as one shape: {"error": {"message", "type", "param", "code"}}, which
is OpenAI's.

A message says what is wrong and what to do, and begins with the field's name where there is one.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
SENTENCES = {
    404: "there is nothing at this address; GET /openapi.json lists what there is",
    405: "this address takes another method; GET /openapi.json says which",
}
NAME = re.compile(r"(?!(?:str|int|float|bool|dict|list|none|nullable)$)[a-z_]+")
"""Of a field inside a field; pydantic also names the kinds that it tried."""
UNFORESEEN = "something went wrong inside the server; the request is not to blame, and others are not touched"


def as_json(value: Any) -> bytes:
    """In UTF-8. Half a surrogate pair, which has no bytes there, is written as JSON's own escape."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


class Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return as_json(content)


def shape(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {
        "error": {
            "message": message,
            "type": kind,
            "param": param,
            "code": code or CODES.get(status),
        }
    }


def failure(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    retry_after: float | None = None,
    headers: dict[str, str] | None = None,
) -> Json:
    headers = dict(headers or {})
    if retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after)))

    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"

    return Json(shape(status, message, param, code), status, headers)


def of_exception(error: BaseException) -> Json:
    """The answer to whoever asked; what nobody foresaw is told without its details."""
    if isinstance(error, RequestRefused):
        late = (
            1.0 if error.retry_after is None and error.status in (429, 503) else error.retry_after
        )
        code = "model_not_found" if error.status == 404 else None
        return failure(
            error.status, str(error), code=code, param="model" if code else None, retry_after=late
        )

    if isinstance(error, ValueError):
        message = str(error)
        field, colon, _ = message.partition(": ")
        return failure(
            400, message, param=field if colon and field.replace("_", "").isalnum() else None
        )

    log_unexpected(error)

    return failure(500, UNFORESEEN)


def attach(app: FastAPI) -> None:
    """Hears of everything that a route refuses."""

    async def refused(request: Request, error: Exception) -> Json:
        return of_exception(error)

    async def not_valid(request: Request, error: Exception) -> Json:
        assert isinstance(error, RequestValidationError)
        message, param = in_words(error.errors(), known_fields(request))
        return failure(400, message, param=param)

    async def of_http(request: Request, error: Exception) -> Json:
        assert isinstance(error, HTTPException)
        if error.status_code == 400:
            return failure(
                400, "body: it cannot be read; expected JSON, in UTF-8, not too deeply nested"
            )

        message = SENTENCES.get(error.status_code, "the request was refused")
        return failure(error.status_code, message, headers=dict(error.headers or {}))

    app.add_middleware(Unforeseen)
    app.add_exception_handler(RequestRefused, refused)
    app.add_exception_handler(ValueError, refused)
    app.add_exception_handler(RequestValidationError, not_valid)
    app.add_exception_handler(HTTPException, of_http)


class Unforeseen:
    """Around all routes: an exception that none of them handles is an answer, too."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception as error:
            if started:  # nothing can be said any more: the line is cut
                raise

            await of_exception(error)(scope, receive, send)


def in_words(errors: Sequence[Any], known: Sequence[str]) -> tuple[str, str | None]:
    """One sentence about the first field that is wrong, and its name. Never the value: it may be of
    any size.
    """
    first = errors[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] == "json_invalid":
        return f"body: it is no JSON ({first['ctx']['error']} at character {place[-1]})", None

    field = place[1] if len(place) > 1 else None
    if field is None:
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] in ("string_unicode", "invalid_key"):
            return "body: there is no such field; a name in it is no text", None
        if first["type"] != "value_error":
            return "body: expected a JSON object, with content-type: application/json", None

        return message, message.partition(":")[0]

    shown = field[:60]
    if first["type"] == "extra_forbidden" and len(place) == 2:
        close = difflib.get_close_matches(shown, known, n=1)
        meant = (
            f"did you mean {close[0]}?" if close else f"leave it out; there are {', '.join(known)}"
        )
        return f"{shown}: there is no such field; {meant}", shown

    of_field = [
        error for error in errors if len(error["loc"]) > 1 and str(error["loc"][1]) == field
    ]
    said = list(dict.fromkeys(expectation(error) for error in of_field))

    return f"{shown}: {', or '.join(said[:4])}", shown


def expectation(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    inside = [
        str(part)[:60]
        for part in error["loc"][2:]
        if isinstance(part, int) or NAME.fullmatch(str(part))
    ]
    at = f" (at {'.'.join(inside)})" if inside else ""
    if error["type"] == "missing":
        return f"this field is missing{at}"
    if error["type"] == "extra_forbidden":
        return f"there is no such field; leave it out{at}"
    if error["type"] == "none_required" or (
        error["type"] == "too_long" and error["ctx"]["max_length"] == 0
    ):
        return f"{UNSUPPORTED}{at}"
    if error["type"] == "string_pattern_mismatch":  # which heads alone are written in
        return f'expected such as "3.5", head 5 of layer 3, or "2.*"{at}'

    message = message.replace(" after validation", "")

    for begin in ("Input should ", "String should ", "List should ", "Value should "):
        if message.startswith(begin):
            return f"it should {message.removeprefix(begin)}{at}"

    return message


def known_fields(request: Request) -> list[str]:
    """Of the route's body: the required ones first, then those of this route alone. Fields without
    an effect are accepted, but not offered."""
    field = getattr(request.scope.get("route"), "body_field", None)
    kind = getattr(getattr(field, "field_info", None), "annotation", None)
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return []

    of_route = kind.__annotations__

    def rank(name: str) -> int:
        return 0 if kind.model_fields[name].is_required() else 1 if name in of_route else 2

    return sorted((name for name in kind.model_fields if name not in WITHOUT_EFFECT), key=rank)
