"""The door: what every request passes before any route sees it, and every answer on its way out.

In this order: can the body's length be told; is the server leaving; is it asked by its own name (a
page elsewhere may point a name of its own at this machine); does a page of another origin ask; is
there a key; is the body small enough, and is it JSON. The body is read here, bounded in size and in
time, so that no route ever waits for one. A response that is sent before the body was read to its
end closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.serving.http.auth import Keys, bearer_key
from qkv.serving.http.auth_attempts import AuthAttempts, TooManyAttempts, address_of
from qkv.serving.error_log import log_unexpected
from qkv.serving.http.errors import UNFORESEEN, failure, of_exception
from qkv.serving.http.prometheus import ServerCounters
from qkv.serving.http.sign_in_page import FORM, key_in, sign_in_page
from qkv.serving.http.sse import ClientDisconnected

log = logging.getLogger("qkv.serving")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
BODY_SECONDS = 30.0
"""In which a body must have come."""
SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, kw_only=True)
class AccessRules:
    """Who may ask, and how much."""

    keys: tuple[str, ...] = ()
    """Any of them opens every route; without any, all are open."""
    names: tuple[str, ...] | None = LOOPBACK
    """What a request may call this server; None is anything."""
    cors: tuple[str, ...] = ()
    """Origins whose pages may ask, such as https://example.org; * is any."""
    deadline: float = 600.0
    """Seconds after which a request is not worked on any more."""
    body: int = 2 << 20
    """Bytes of a request's body, at most."""


class RequestMiddleware:
    def __init__(self, app: ASGIApp, rules: AccessRules, counted: ServerCounters) -> None:
        self.app, self.rules, self.counted = app, rules, counted
        self.keys = Keys(rules.keys)
        self.attempts = AuthAttempts(self.keys)
        self.draining = False
        self.running: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self.watched(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Counted and logged: the method, the path, the outcome; never a query, a header or a body."""
        began, headers, method = time.monotonic(), Headers(scope=scope), scope["method"]
        if method == "HEAD":  # as GET; uvicorn keeps the body to itself
            scope = {**scope, "method": "GET"}

        wanted = headers.get("access-control-request-headers", "authorization, content-type")
        out = Outgoing(
            send, self.allowed_origin(headers), wanted, close=self.draining or has_body(headers)
        )
        task = asyncio.current_task()
        assert task is not None
        self.running.add(task)

        try:
            await self.passed(scope, receive, out, headers)
        except ClientDisconnected:
            out.cut()
        except (Exception, asyncio.CancelledError) as error:
            if (
                isinstance(error, asyncio.CancelledError) and self.draining
            ):  # the time to leave is over
                await parted(scope, receive, out)
            else:
                log_unexpected(error)
                if out.status is not None:
                    out.cut()
                else:
                    await failure(500, UNFORESEEN)(scope, receive, out)
        finally:
            self.running.discard(task)
            seconds = time.monotonic() - began
            path = getattr(scope.get("route"), "path", "other")
            self.counted.add(path, out.status or 499, seconds)
            shown = scope["path"][:200].encode("ascii", "backslashreplace").decode()
            log.info(
                "%s %s %s %.0f ms", method, printed(shown), out.status or "gone", 1000 * seconds
            )

    async def passed(
        self, scope: Scope, receive: Receive, send: Outgoing, headers: Headers
    ) -> None:
        refusal = self.refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self.body(receive, headers)
        except TimeoutError:
            body = failure(408, "body: it did not come in time; send it at once")

        if isinstance(body, Response):
            await body(scope, receive, send)
            return

        send.close = self.draining
        if signs_in(scope) and self.keys:
            await self.signed_in(scope, body)(scope, receive, send)
        else:
            await self.app(scope, again(body, receive), send)

    def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request that does not come in."""
        path, method, origin = scope["path"], scope["method"], headers.get("origin")
        if "transfer-encoding" in headers and (
            "content-length" in headers or scope["http_version"] == "1.0"
        ):
            return failure(
                400,
                "transfer-encoding: it came with a content-length, or in HTTP/1.0; send one of both",
            )
        if self.draining and path not in ("/health", "/metrics"):
            return failure(
                503,
                "the server is leaving and takes no new requests; ask again soon",
                retry_after=5,
            )

        if not self.called_by_name(headers.get("host", "")):
            names = ", ".join(self.rules.names or ())
            return failure(
                403, f"host: this server is called {names}, and by no other name", code="wrong_host"
            )

        foreign = origin is not None and not own_origin(origin, headers.get("host", ""))
        if foreign and self.allowed_origin(headers) is None:
            return failure(
                403,
                "origin: pages of other origins may not ask; --cors lets one in",
                code="wrong_origin",
            )
        if foreign and method == "OPTIONS" and "access-control-request-method" in headers:
            return Response(
                status_code=HTTPStatus.NO_CONTENT
            )  # of which `Outgoing` says what is allowed

        return self.without_key(scope, headers) or self.wrong_type(scope, headers)

    def without_key(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request that needs a key and has none. The routes find in `scope` whether
        there is one.
        """
        path, key = scope["path"], bearer_key(headers)
        open_to_all, paused = path in ("/health", "/sign-in"), None
        scope["signed_in"] = not self.keys or self.keys.admits_cookie(headers)
        if key and not scope["signed_in"]:
            try:
                scope["signed_in"] = self.attempts.check(address_of(scope), key) is not None
            except TooManyAttempts as error:
                paused = error

        if scope["signed_in"] or open_to_all:
            return None
        if paused is not None:
            return failure(429, str(paused), code="too_many_wrong_keys", retry_after=paused.seconds)
        if path == "/" and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            return sign_in_page()

        return failure(401, "key: expected one of this server's, as Authorization: Bearer KEY")

    def wrong_type(self, scope: Scope, headers: Headers) -> Response | None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if (
            scope["method"] == "POST"
            and scope["path"].startswith("/v1/")
            and kind != "application/json"
        ):
            return failure(415, "content-type: expected application/json")
        if signs_in(scope) and self.keys and kind != FORM:
            return failure(415, f"content-type: expected {FORM}")

        return None

    def called_by_name(self, host: str) -> bool:
        if self.rules.names is None:
            return True

        name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
        return name.lower() in self.rules.names

    def allowed_origin(self, headers: Mapping[str, str]) -> str | None:
        origin = headers.get("origin")
        if origin is None:
            return None

        return origin if origin in self.rules.cors else "*" if "*" in self.rules.cors else None

    async def body(self, receive: Receive, headers: Headers) -> bytes | Response:
        """All of it, or the refusal of one that is too large, before it is read."""
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
        return failure(413, f"body: expected at most {self.rules.body:,} bytes; send less")

    def signed_in(self, scope: Scope, body: bytes) -> Response:
        """A browser's form with the key: the cookie, and on to the page."""
        try:
            index = self.attempts.check(address_of(scope), key_in(body))
        except ValueError as error:
            return of_exception(error)
        except TooManyAttempts as paused:
            return sign_in_page(str(paused), status=429, wait=paused.seconds)

        if index is None:
            return sign_in_page("This is no key of this server.")

        headers = {"Location": "/", "Set-Cookie": self.keys.cookie_for(index)}

        return Response(status_code=HTTPStatus.SEE_OTHER, headers=headers)


async def parted(scope: Scope, receive: Receive, out: Outgoing) -> None:
    """The last word to a client whose answer is not finished: all of an answer, an event, or none."""
    leaving = failure(503, "the server is leaving; ask again soon", retry_after=5)
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            if out.status is None:
                return await leaving(scope, receive, out)

            if out.streams:
                last = b"data: " + bytes(leaving.body) + b"\n\n"
                return await out({"type": "http.response.body", "body": last, "more_body": False})

    return out.cut()


def has_body(headers: Mapping[str, str]) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "").strip("0") != ""


def signs_in(scope: Scope) -> bool:
    return bool(scope["path"] == "/sign-in" and scope["method"] == "POST")


def own_origin(origin: str, host: str) -> bool:
    """A page that this server sent; whatever stands before it may speak https."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False

    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()


def printed(path: str) -> str:
    """Nobody writes a second line into our log."""
    return "".join(sign if sign.isprintable() else "?" for sign in path)


def again(body: bytes, receive: Receive) -> Receive:
    """The body that was read, once more; then what comes after it, which is the client's leaving."""
    waiting: deque[Message] = deque([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        return waiting.popleft() if waiting else await receive()

    return replay


class Outgoing:
    """`send`, with the headers that every answer has; it knows the status, and can cut the line."""

    def __init__(self, send: Send, origin: str | None, wanted: str, close: bool) -> None:
        """Pages of an `origin` that may ask may send the headers that are `wanted`: clients have
        some of their own. `close`: the connection takes no other request, because the server stops
        or the body was not read."""
        self.send, self.origin, self.wanted, self.close = send, origin, wanted, close
        self.status: int | None = None
        self.streams = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            self.streams = headers.get("content-type", "").startswith("text/event-stream")
            for name, value in SECURITY.items():
                headers.setdefault(name, value)

            if self.close:
                headers["Connection"] = "close"

            if self.origin is not None:
                headers["Access-Control-Allow-Origin"] = self.origin
                headers["Access-Control-Allow-Headers"] = self.wanted
                headers["Access-Control-Allow-Methods"] = "GET, POST"
                headers["Access-Control-Expose-Headers"] = "retry-after"
                headers["Cross-Origin-Resource-Policy"] = "cross-origin"
                headers.add_vary_header("Origin")

            message = {**message, "headers": headers.raw}

        await self.send(message)

    def cut(self) -> None:
        """The client takes nothing: what is buffered for it is let go, too. ASGI has no word for
        it; uvicorn's `send` belongs to an object that knows the connection."""
        transport = getattr(getattr(self.send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()
