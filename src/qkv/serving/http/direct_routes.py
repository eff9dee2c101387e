"""Direct routes: the busiest ones without FastAPI's routing, which takes longer than their work.

A direct route has one body and no other parameter. A request that is not valid is passed on to
FastAPI, which explains the fault.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from qkv.serving.http.errors import exception_response

Endpoint = Callable[[Any, Request], Awaitable[Response]]


class DirectRoute(NamedTuple):
    """A route whose body is parsed here."""

    body: type[BaseModel]
    endpoint: Endpoint


class PassedOn(Exception):
    """The endpoint leaves a request to the application, before it has read anything."""


class DirectRoutes:
    """The ASGI application below the middleware."""

    def __init__(self, app: Any, routes: Mapping[str, DirectRoute]) -> None:
        """Answer POST requests of these paths directly, and pass others on to the application."""
        self.app = app
        self.routes = routes

    @property
    def state(self) -> Any:
        """The state of the application."""
        return self.app.state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.routes.get(scope["path"]) if scope.get("method") == "POST" else None
        body = None
        if route is not None:
            body = parsed(route.body, scope["body"])

        if route is None or body is None:
            await self.app(scope, receive, send)
            return

        scope["app"] = self.app
        scope["route"] = SimpleNamespace(path=scope["path"])
        try:
            response: ASGIApp = await route.endpoint(body, Request(scope, receive))
        except PassedOn:
            response = self.app
        except Exception as error:
            response = exception_response(error)

        await response(scope, receive, send)


def parsed(kind: type[BaseModel], content: bytes) -> BaseModel | None:
    """The body of a request, read as FastAPI reads it; None if it is not valid."""
    try:
        return kind.model_validate(json.loads(content), from_attributes=True)
    except Exception:  # FastAPI says which fault it is
        return None
