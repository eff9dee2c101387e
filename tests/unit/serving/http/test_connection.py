"""Connections that a client could hold open: the server answers and closes each of them."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from qkv.serving.http.middleware import AccessRules
from qkv.serving.model_host import ModelHost
from support.small_server import IMPLEMENTATIONS, Running, running
from support.waiting import PATIENCE, until

KEY = "a-key-of-this-server"
LOCKED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
OPEN = LOCKED + b"Authorization: Bearer " + KEY.encode() + b"\r\n"
REFUSED = {
    "no key": (401, LOCKED),
    "wrong host": (403, LOCKED.replace(b"localhost", b"elsewhere")),
    "foreign origin": (403, OPEN + b"Origin: https://elsewhere.example\r\n"),
    "not JSON": (415, OPEN.replace(b"application/json", b"text/plain")),
    "a page without a key": (401, b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n"),
    "not a form": (415, LOCKED.replace(b"/v1/completions", b"/sign-in")),
}  # fmt: skip
BODIES = {
    "nothing of a body": (b"Content-Length: 100\r\n\r\n", b""),
    "part of a body": (b"Content-Length: 100\r\n\r\n", b'{"model":'),
    "part of a chunked body": (b"Transfer-Encoding: chunked\r\n\r\n", b'9\r\n{"model":\r\n'),
    "a body that never ends": (
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"400\r\n" + b"a" * 1024 + b"\r\n",
    ),
    "a body and a byte more": (b"Content-Length: 2\r\n\r\n", b"{}x"),
    "a body and garbage": (b"Content-Length: 2\r\n\r\n", b"{}\x00\xff garbage \r\n\r\n"),
    "a body and a second request": (
        b"Content-Length: 2\r\n\r\n",
        b"{}" + LOCKED + b"Content-Length: 9\r\n\r\n",
    ),
    "a chunk that is none": (b"Transfer-Encoding: chunked\r\n\r\n", b"nonsense\r\n"),
}


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def locked(host: ModelHost, request: pytest.FixtureRequest) -> Iterator[Running]:
    """A server with keys, whose time limits, except for lingering, are longer than any test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv.serving.http.connection.LINGER_SECONDS", 0.05)
        with running(host, AccessRules(keys=(KEY,)), **IMPLEMENTATIONS[request.param]) as server:
            server.server.config.timeout_keep_alive = 10**6
            yield server


@contextmanager
def connected(server: Running) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as line:
        yield line


def received(line: socket.socket) -> bytes:
    """Everything that the server sends until it closes its side."""
    return b"".join(iter(lambda: line.recv(65536), b""))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("reason", REFUSED)
def test_a_refused_request_with_an_unread_body_loses_its_connection(
    locked: Running, reason: str, body: str
) -> None:
    """Also while the client goes on sending: bytes after the response start no new wait."""
    (status, head), (length, sent) = REFUSED[reason], BODIES[body]
    with connected(locked) as line:
        line.sendall(head + length)
        line.sendall(sent)
        response = received(line)
        assert response.startswith((b"HTTP/1.1 %d " % status, b"HTTP/1.1 400 "))
        assert response.lower().count(b"connection: close") == 1
        assert response.count(b"HTTP/1.1 ") == 1  # the second request was not read
        until(lambda: not sending(line) and not locked.server.server_state.connections)
    assert not locked.app.running


def sending(line: socket.socket, data: bytes = b"x") -> bool:
    try:
        line.sendall(data)
    except OSError:
        return False
    return True


def test_a_refused_client_reads_the_response_although_it_is_still_sending(locked: Running) -> None:
    """Its body exceeds the socket buffers, so that it is refused while it sends."""
    for _ in range(3):
        response = httpx.post(
            f"{locked.url}/v1/completions", content=b" " * (8 << 20), timeout=PATIENCE
        )
        assert (response.status_code, response.headers["connection"]) == (401, "close")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/models", None, 401),  # refused, without a body
        ("POST", "/v1/completions", b"{}", 400),  # refused after its body was read
        ("POST", "/nowhere", b"{}", 404),
        ("GET", "/v1/completions", b"{}", 405),
    ],
)
def test_a_request_that_was_read_whole_keeps_its_connection(
    locked: Running, method: str, path: str, body: bytes | None, status: int
) -> None:
    headers = {"content-type": "application/json"}
    if status != 401:
        headers["authorization"] = f"Bearer {KEY}"
    client = http.client.HTTPConnection("127.0.0.1", locked.port, timeout=PATIENCE)
    ports = set()
    for _ in range(3):
        client.request(method, path, body, headers)
        ports.add(client.sock.getsockname())
        response = client.getresponse()
        response.read()
        assert response.status == status
    client.close()
    assert len(ports) == 1


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 13\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"Content-Length: 2, 3\r\n\r\n{}",
        b"Content-Length: -2\r\n\r\n{}",
        b"Content-Length: +2\r\n\r\n{}",
        b"Content-Length: 0x2\r\n\r\n{}",
        b"Content-Length: \r\n\r\n{}",
        b"Content-Length : 2\r\n\r\n{}",
        b"Content-Length: " + b"9" * 400 + b"\r\n\r\n{}",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity\r\n\r\n{}",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n",
    ],
)
def test_a_body_whose_length_is_ambiguous_is_refused_and_what_follows_is_not_read(
    locked: Running, framing: bytes
) -> None:
    smuggled = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(locked) as line:
        line.sendall(OPEN + framing + smuggled)
        response = received(line)
    assert response.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in response.lower()
    assert b'{"error":{"message":"' in response
    assert b"x-content-type-options: nosniff" in response.lower()
    assert response.count(b"HTTP/1.1 ") == 1
    until(lambda: not locked.server.server_state.connections)


def test_a_refused_client_cannot_send_forever(
    locked: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.serving.http.connection.LINGER_SECONDS", 10**6)
    monkeypatch.setattr("qkv.serving.http.connection.LINGER_BYTES", 1 << 20)
    with connected(locked) as line:
        line.sendall(LOCKED + b"Content-Length: 99999999\r\n\r\n")
        assert received(line).startswith(b"HTTP/1.1 401 ")
        with pytest.raises(OSError, match=r"reset|pipe"):
            line.sendall(b"x" * 99999999)
    until(lambda: not locked.server.server_state.connections)


def test_http_1_0_has_no_chunks(locked: Running) -> None:
    with connected(locked) as line:
        line.sendall(
            OPEN.replace(b"HTTP/1.1", b"HTTP/1.0")
            + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        )
        assert b" 400 " in received(line)


def test_bytes_that_are_not_http_get_a_json_error(locked: Running) -> None:
    with connected(locked) as line:
        line.sendall(b"\x16\x03\x01\x02\x00 nonsense\r\n\r\n")
        head, _, body = received(line).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/json" in head.lower()
    assert b'"type":"invalid_request_error"' in body


def test_a_body_that_comes_too_slowly_ends_the_connection(
    locked: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.serving.http.middleware.BODY_SECONDS", 0.2)
    with connected(locked) as line:
        line.sendall(OPEN + b"Content-Length: 100\r\n\r\n{")
        assert received(line).startswith(b"HTTP/1.1 408 ")
        until(lambda: not sending(line) and not locked.server.server_state.connections)


def test_a_client_that_opens_many_refused_requests_holds_none_of_them(locked: Running) -> None:
    lines = [
        socket.create_connection(("127.0.0.1", locked.port), timeout=PATIENCE) for _ in range(50)
    ]
    for line in lines:
        line.sendall(LOCKED + b"Content-Length: 100\r\n\r\n{")
    for line in lines:
        assert received(line).startswith(b"HTTP/1.1 401 ")
        sending(line)
    until(lambda: not locked.server.server_state.connections)
    for line in lines:
        line.close()


def test_headers_that_never_end_are_refused(locked: Running) -> None:
    """The parser would keep them; a second request, while the first is answered, too."""
    with connected(locked) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        sent = 0
        while sending(line, b"X-A: " + b"a" * 8192 + b"\r\n") and sent < 64 << 20:
            sent += 8192
        assert sent < 64 << 20
    until(lambda: not locked.server.server_state.connections)


def test_requests_sent_at_once_are_answered_in_order(locked: Running) -> None:
    """Pipelined requests; the connection is idle after the last of them."""
    head = OPEN.replace(b"POST /v1/completions", b"GET /%s")
    with connected(locked) as line:
        line.sendall(b"".join(head % path + b"\r\n" for path in (b"health", b"no", b"health")))
        received = b""
        while received.count(b"HTTP/1.1 ") < 3 or not received.endswith(b"}"):
            received += line.recv(65536)
    statuses = [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404", b"200"]
