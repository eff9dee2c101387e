"""Request middleware: the checks before every route, and the headers of every response.

In this order: the body's length must be unambiguous; the server must not be stopping; the Host
header must be one of the server's names (against DNS rebinding); a cross-origin request needs
CORS; the request needs a key; the body must be JSON and not too large. The body is read here, with
limits on its size and time, so that no route waits for one. A CORS preflight is answered before all
of this. A response that is sent before the
body was read to its end closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.serving.addresses import LOOPBACK
from qkv.serving.engine.generation_request import RequestRefused
from qkv.serving.error_log import log_unexpected
from qkv.serving.http.access.auth import COOKIE, Keys, bearer_key, is_own_origin
from qkv.serving.http.access.auth_attempts import AuthAttempts, TooManyAttempts, address_of
from qkv.serving.http.access.sign_in_page import FORM, key_in, sign_in_page
from qkv.serving.http.connection import Connection, Outgoing
from qkv.serving.http.errors import INTERNAL_ERROR, error_response, exception_response
from qkv.serving.http.prometheus import ServerMetrics
from qkv.serving.http.sse import ClientDisconnected

log = logging.getLogger("qkv.serving")
BODY_SECONDS = 30.0
"""Time limit for reading a body."""
DISCONNECTED = 499
"""Status that is counted when a client disconnects before its response."""
CORS: Any = {
    "allow_methods": ("GET", "POST"),
    "allow_headers": "*",
    "expose_headers": ("retry-after",),
}


@dataclass(frozen=True, kw_only=True)
class AccessRules:
    """Who may use the server, and how much a request may cost."""

    keys: tuple[str, ...] = ()
    """API keys, each valid for every route; without any, the server is open."""
    names: tuple[str, ...] | None = LOOPBACK
    """Accepted values of the Host header; None accepts all."""
    cors: tuple[str, ...] = ()
    """Allowed origins, such as https://example.org; * allows all."""
    deadline: float = 600.0
    """Seconds after which a request ends."""
    body: int = 2 << 20
    """Maximum size of a request body in bytes."""
    cookie_secret: bytes = field(
        default_factory=lambda: secrets.token_bytes(32), repr=False, compare=False
    )
    """Signs session cookies, which are valid while this server runs, in all its processes."""


CheckKey = Callable[[str, str], Awaitable[int | None]]
"""(address, key) -> the index of the key, or None; raises TooManyAttempts during a pause."""


class RequestMiddleware:
    """The ASGI application that the server runs: checks, logs and counts every request."""

    def __init__(
        self,
        app: ASGIApp,
        rules: AccessRules,
        metrics: ServerMetrics,
        check_key: CheckKey | None = None,
    ) -> None:
        """Wrap an application.

        Args:
            app: The application with the routes.
            rules: Who may use the server.
            metrics: Counts the responses.
            check_key: Checks a key; None checks it, and counts wrong ones, in this process.
        """
        self.app = app
        self.rules = rules
        self.metrics = metrics
        self.hosts = TrustedHostMiddleware(mark_trusted, rules.names, www_redirect=False)
        self.keys = Keys(rules.keys, rules.cookie_secret)
        self.attempts = AuthAttempts(self.keys)
        self.check_key = check_key or self.check_key_here
        self.draining = False
        self.running: set[asyncio.Task[Any]] = set()
        metrics.running.set_function(lambda: len(self.running))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self.track(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def track(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, count it, and log method, path and status: never headers or body."""
        began = time.monotonic()
        headers = Headers(scope=scope)
        method = scope["method"]
        if method == "HEAD":  # handled as GET; uvicorn drops the body
            scope = {**scope, "method": "GET"}

        connection = scope.get("state", {}).get("connection")
        out = Outgoing(send, connection, unread=has_body(headers))
        out.close = out.unread or self.draining
        app: ASGIApp = partial(self.handle, out)
        if self.allows_origin(headers):
            out.cross_origin = True
            app = CORSMiddleware(app, self.rules.cors, **CORS)

        task = asyncio.current_task()
        assert task is not None
        self.running.add(task)
        if connection is not None:
            connection.begin(out)

        try:
            await app(scope, receive, out)
        except ClientDisconnected:
            out.cut()
        except (Exception, asyncio.CancelledError) as error:
            await self.answer_failure(error, scope, receive, out)
        finally:
            if connection is not None:
                connection.end(out)

            self.running.discard(task)
            seconds = time.monotonic() - began
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.count(route, out.status or DISCONNECTED, seconds)
            path = printable(scope["path"])
            log.info("%s %s %s %.0f ms", method, path, out.status or "gone", 1000 * seconds)

    async def answer_failure(
        self, error: BaseException, scope: Scope, receive: Receive, out: Outgoing
    ) -> None:
        """Answer a request that failed outside of its route, or was cancelled."""
        if isinstance(error, asyncio.CancelledError) and self.draining:  # draining took too long
            await answer_cancelled(scope, receive, out)
            return

        if "logged" not in scope:
            log_unexpected(error)

        if out.status is None:
            await error_response(500, INTERNAL_ERROR)(scope, receive, out)
        elif not out.complete:
            out.cut()

    async def handle(self, out: Outgoing, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, read its body and pass both on."""
        headers = Headers(scope=scope)
        await self.hosts(scope, receive, ignore)
        refusal = await self.refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self.read_body(receive, headers)
        except TimeoutError:
            body = error_response(408, "body: it did not arrive in time; send it at once")

        if isinstance(body, Response):
            await body(scope, receive, send)
            return

        out.unread = False
        out.close = self.draining
        if is_sign_in(scope) and self.keys:
            response = await self.sign_in(scope, body)
            await response(scope, receive, send)
        else:
            scope["body"] = body
            await self.app(scope, replayed(body, receive, out.connection), send)

    # Checks

    async def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """The response to a request that no route may see, or None."""
        return (
            self.ambiguous_length(scope, headers)
            or self.stopping(scope)
            or self.wrong_host(scope)
            or self.wrong_origin(headers)
            or await self.missing_key(scope, headers)
            or self.wrong_type(scope, headers)
        )

    def ambiguous_length(self, scope: Scope, headers: Headers) -> Response | None:
        if "transfer-encoding" not in headers:
            return None
        if "content-length" not in headers and scope["http_version"] != "1.0":
            return None

        return error_response(
            400, "transfer-encoding: not allowed with a content-length or in HTTP/1.0; send one"
        )

    def stopping(self, scope: Scope) -> Response | None:
        if not self.draining or scope["path"] in ("/health", "/metrics"):
            return None

        return error_response(
            503, "the server is stopping and takes no new requests; try again soon", retry_after=5
        )

    def wrong_host(self, scope: Scope) -> Response | None:
        if scope.get("trusted_host"):
            return None

        names = ", ".join(self.rules.names or ())
        return error_response(403, f"host: this server only answers to {names}", code="wrong_host")

    def wrong_origin(self, headers: Headers) -> Response | None:
        origin = headers.get("origin")
        if origin is None or self.allows_origin(headers):
            return None
        if is_own_origin(origin, headers.get("host", "")):
            return None

        return error_response(
            403,
            "cross-origin requests are blocked; start the server with --cors ORIGIN",
            code="wrong_origin",
        )

    def allows_origin(self, headers: Headers) -> bool:
        """Whether CORS allows the origin of a request."""
        return "origin" in headers and not {headers["origin"], "*"}.isdisjoint(self.rules.cors)

    async def missing_key(self, scope: Scope, headers: Headers) -> Response | None:
        """The response to a request without the key it needs.

        Routes read scope["signed_in"]: whether the request has a key, or needs none.
        """
        path = scope["path"]
        key = bearer_key(headers)
        cookies = cookie_parser(headers.get("cookie", ""))
        paused: TooManyAttempts | None = None
        scope["signed_in"] = not self.keys or self.keys.admits_cookie(cookies.get(COOKIE, ""))
        if key and not scope["signed_in"]:
            try:
                scope["signed_in"] = await self.check_key(address_of(scope), key) is not None
            except TooManyAttempts as error:
                paused = error
            except RequestRefused as error:  # no process can check it
                return exception_response(error)

        if scope["signed_in"] or path in ("/health", "/sign-in"):
            return None
        if paused is not None:
            return error_response(
                429, str(paused), code="too_many_wrong_keys", retry_after=paused.seconds
            )
        if path == "/" and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            return sign_in_page()

        return error_response(
            401, "key: expected a key of this server, as Authorization: Bearer KEY"
        )

    async def check_key_here(self, address: str, key: str) -> int | None:
        return self.attempts.check(address, key)

    def wrong_type(self, scope: Scope, headers: Headers) -> Response | None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        api = scope["method"] == "POST" and scope["path"].startswith("/v1/")
        if api and kind != "application/json":
            return error_response(415, "content-type: expected application/json")
        if is_sign_in(scope) and self.keys and kind != FORM:
            return error_response(415, f"content-type: expected {FORM}")

        return None

    # The body

    async def read_body(self, receive: Receive, headers: Headers) -> bytes | Response:
        """The body, or the response to one that is too large."""
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length[:20]) > self.rules.body:
            return self.too_large()

        body = bytearray()
        more = True

        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected

            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.rules.body:
                return self.too_large()

        return bytes(body)

    def too_large(self) -> Response:
        return error_response(413, f"body: expected at most {self.rules.body:,} bytes; send less")

    async def sign_in(self, scope: Scope, body: bytes) -> Response:
        """The response to the sign-in form: a session cookie and a redirect to the page."""
        try:
            index = await self.check_key(address_of(scope), key_in(body))
        except (ValueError, RequestRefused) as error:
            return exception_response(error)
        except TooManyAttempts as paused:
            return sign_in_page(str(paused), status=429, wait=paused.seconds)

        if index is None:
            return sign_in_page("This is not a key of this server.")

        headers = {"Location": "/", "Set-Cookie": self.keys.cookie_for(index)}

        return Response(status_code=HTTPStatus.SEE_OTHER, headers=headers)


async def answer_cancelled(scope: Scope, receive: Receive, out: Outgoing) -> None:
    """Tell a client that its request was cut off: by a response, by an event, or not at all."""
    response = error_response(503, "the server is stopping; try again soon", retry_after=5)
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            if out.status is None:
                return await response(scope, receive, out)

            if out.streams:
                event = b"data: " + bytes(response.body) + b"\n\n"
                return await out({"type": "http.response.body", "body": event, "more_body": False})

    return out.cut()


def has_body(headers: Mapping[str, str]) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "").strip("0") != ""


def is_sign_in(scope: Scope) -> bool:
    return bool(scope["path"] == "/sign-in" and scope["method"] == "POST")


def printable(path: str) -> str:
    """A path for the log, on one line."""
    shown = path[:200].encode("ascii", "backslashreplace").decode()
    return "".join(sign if sign.isprintable() else "?" for sign in shown)


async def mark_trusted(scope: Scope, receive: Receive, send: Send) -> None:
    """What Starlette's host middleware calls if the Host header is one of the server's names."""
    scope["trusted_host"] = True


async def ignore(message: Message) -> None:
    """A `send` for Starlette's refusal of a host; `wrong_host` words it like other errors."""


def replayed(body: bytes, receive: Receive, connection: Connection | None) -> Receive:
    """A `receive` that returns the body again, and then what follows: the disconnect."""
    messages: deque[Message] = deque([{"type": "http.request", "body": body, "more_body": False}])

    async def receive_again() -> Message:
        if messages:
            return messages.popleft()
        if connection is None:
            return await receive()

        await connection.lost.wait()  # httptools reports it to the last pipelined request only
        return {"type": "http.disconnect"}

    return receive_again
