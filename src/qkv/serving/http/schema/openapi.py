"""What the OpenAPI document says of every route beyond its fields: each answer it may give, and
why.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from qkv.serving.http.schema.response_schema import ErrorResponse

REASONS = {
    400: "The request cannot be done: a field is missing, of a wrong type or out of bounds.",
    401: "The server has keys, and none of them came along.",
    403: "Asked under a wrong name, or by a page of another origin.",
    404: "There is no such model.",
    408: "The deadline passed before anything was said.",
    413: "The body is too large.",
    415: "The body is no JSON.",
    429: "The queue is full, or several wrong keys came: ask again after as many seconds as Retry-After says.",
    500: "Something that nobody foresaw.",
    503: "The model is still being loaded, or the server is leaving: see Retry-After.",
}
RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}
STREAMED = {
    "text/event-stream": {
        "schema": {
            "description": "Events with JSON in their data, as they come; that of the last one is [DONE]."
        },
        "example": 'data: {"choices": [...]}\n\ndata: [DONE]\n\n',
    }
}
Responses = dict[int | str, dict[str, Any]]


def documented(reply: type[BaseModel], *, also: dict[str, Any] | None = None) -> Responses:
    """The answers of a route that asks a model."""
    found: Responses = {200: {"model": reply, "description": "What was asked for."}}
    if also:
        found[200]["content"] = also

    return found | refusals(*REASONS)


def refusals(*statuses: int) -> Responses:
    return {
        status: {"model": ErrorResponse, "description": REASONS[status]}
        | ({"headers": RETRY} if status in (429, 503) else {})
        for status in statuses
    }


def describe(app: FastAPI) -> None:
    """The document, without FastAPI's own 422: a bad request is 400 here, in the shape of all
    errors.
    """

    def made() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            for path in found["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)

            schemas = found.get("components", {}).get("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)

            found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            found["security"] = [{"key": []}, {}]
            app.openapi_schema = found

        return app.openapi_schema

    app.openapi = made  # type: ignore[method-assign]
