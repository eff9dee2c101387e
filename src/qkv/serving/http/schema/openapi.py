"""The OpenAPI document: all responses of every route, with the reasons for each error."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from qkv.serving.http.schema.response_schema import ErrorResponse

REASONS = {
    400: "The request is invalid: a field is missing, of a wrong type or out of bounds.",
    401: "The server has keys, and the request has none of them.",
    403: "The Host header is wrong, or a page of another origin sent the request.",
    404: "The model does not exist.",
    408: "The deadline passed before the first token.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "The queue is full, or there were too many wrong keys: retry after Retry-After seconds.",
    500: "An unexpected error.",
    503: "The model is still loading, or the server is stopping: see Retry-After.",
}
RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}
STREAMED = {
    "text/event-stream": {
        "schema": {
            "description": "Events with JSON as their data; the data of the last one is [DONE]."
        },
        "example": 'data: {"choices": [...]}\n\ndata: [DONE]\n\n',
    }
}
Responses = dict[int | str, dict[str, Any]]


def documented(reply: type[BaseModel], *, also: dict[str, Any] | None = None) -> Responses:
    """The responses of a route that uses a model; `also` adds content types of the reply."""
    responses: Responses = {200: {"model": reply, "description": "The result."}}
    if also:
        responses[200]["content"] = also

    return responses | refusals(*REASONS)


def refusals(*statuses: int) -> Responses:
    """The error responses of some statuses."""
    responses: Responses = {}
    for status in statuses:
        responses[status] = {"model": ErrorResponse, "description": REASONS[status]}
        if status in (429, 503):
            responses[status]["headers"] = RETRY

    return responses


def describe(app: FastAPI) -> None:
    """Document the app without FastAPI's 422: an invalid request is 400, like all errors."""
    app.openapi = cache(partial(document_of, app))  # type: ignore[method-assign]


def document_of(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)

    schemas = document.get("components", {}).get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)

    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}, {}]
    return document
