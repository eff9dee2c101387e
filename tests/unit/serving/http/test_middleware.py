"""Request middleware: keys, host names, origins, and the headers of every response."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from typing import Any

import httpx
import openai
import pytest

from qkv.serving.http.access import auth as keys_module
from qkv.serving.http.access.auth import Keys
from qkv.serving.http.middleware import AccessRules
from qkv.serving.model_host import ModelHost
from support.small_server import asgi_app, running
from support.waiting import PATIENCE

KEYS = ("first-key-of-two", "second-key-of-two")
PAGE = {"accept": "text/html"}
BODY = {"model": "gpt", "prompt": "the cat", "max_tokens": 2}


def client_of(host: ModelHost, **rules: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(asgi_app(host, **rules))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:8000")


def send_request(
    host: ModelHost, method: str, path: str, rules: dict[str, Any] | None = None, **options: Any
) -> httpx.Response:
    """One request, without a network."""

    async def one() -> httpx.Response:
        async with client_of(host, **(rules or {})) as client:
            return await client.request(method, path, **options)

    return asyncio.run(one())


# Keys


def test_the_official_client_with_a_key_and_without(host: ModelHost) -> None:
    with running(host, AccessRules(keys=KEYS)) as server:
        for key in KEYS:
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                assert client.completions.create(**BODY).choices  # type: ignore[call-overload]
        with openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="third-key-of-two", max_retries=0
        ) as client:
            with pytest.raises(openai.AuthenticationError, match="key: expected a key") as error:
                client.completions.create(**BODY)  # type: ignore[call-overload]
            assert error.value.code == "invalid_api_key"
            with pytest.raises(openai.AuthenticationError):
                client.models.list()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/models",
        "/v1/models/gpt",
        "/metrics",
        "/openapi.json",
        "/web/page.js",
        "/nowhere",
        "/sign-in/x",
    ],
)
def test_every_route_but_health_needs_a_key(host: ModelHost, path: str) -> None:
    locked = {"keys": KEYS}
    assert send_request(host, "GET", path, locked).status_code == 401
    assert send_request(host, "GET", path, locked).headers["www-authenticate"] == "Bearer"
    for wrong in (
        "Bearer",
        "Bearer ",
        "Bearer wrong-key",
        f"Basic {KEYS[0]}",
        KEYS[0],
        f"Bearer {KEYS[0]}x",
        "ü",
    ):
        headers = {"authorization": wrong.encode("utf-8")}
        response = send_request(host, "GET", path, locked, headers=headers)
        assert response.status_code == 401
    assert (
        send_request(
            host, "GET", path, locked, headers={"authorization": f"bearer {KEYS[1]}"}
        ).status_code
        != 401
    )
    assert send_request(host, "GET", "/health", locked).status_code == 200


def test_all_keys_are_compared_whole_and_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = keys_module.hmac.compare_digest

    def noted(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    keys = Keys(KEYS)
    monkeypatch.setattr(keys_module.hmac, "compare_digest", noted)
    for key in (KEYS[0], KEYS[1], "x", "x" * 10_000, ""):
        compared.clear()
        assert (keys.index(key) is not None) == (key in KEYS)
        assert compared == [(32, 32)] * 2
    for short in ("short", "with a space", "ümlaut-key", ""):
        with pytest.raises(ValueError, match=r"key: .*8 characters") as error:
            Keys([short])
        assert not short or short not in str(error.value)


def test_a_browser_signs_in_and_gets_a_cookie_that_is_no_key(host: ModelHost) -> None:
    async def visit() -> None:
        async with client_of(host, keys=KEYS) as browser:
            page = await browser.get("/", headers=PAGE)
            assert page.status_code == 401
            assert "<form" in page.text
            assert "<script" not in page.text
            assert "form-action 'self'" in page.headers["content-security-policy"]
            same_origin = {"origin": "http://localhost:8000"}
            wrong = await browser.post("/sign-in", data={"key": "wrong-key"}, headers=same_origin)
            assert wrong.status_code == 401
            assert "not a key of this server" in wrong.text
            assert not browser.cookies
            right = await browser.post("/sign-in", data={"key": KEYS[1]}, headers=same_origin)
            assert (right.status_code, right.headers["location"]) == (303, "/")
            cookie = right.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert not any(key in cookie for key in KEYS)
            assert (await browser.get("/v1/models")).status_code == 200
            assert (await browser.get("/", headers=PAGE)).status_code != 401
            beside = f'prefs={{"a": 1}}; x=a b; long={"a" * 5000}; {cookie.partition(";")[0]}; last'
            own_and_others = await browser.get("/v1/models", headers={"cookie": beside})
            assert own_and_others.status_code == 200  # cookies of other pages do not matter
            browser.cookies.clear()
            browser.cookies.set("qkv", "0" * 64)
            assert (await browser.get("/v1/models")).status_code == 401

        async with client_of(host) as open_to_all:
            assert (await open_to_all.post("/sign-in", data={"key": "x"})).status_code == 404

    asyncio.run(visit())


def test_nothing_secret_is_logged(host: ModelHost, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="qkv.serving"):
        headers = {"authorization": f"Bearer {KEYS[0]}"}
        send_request(
            host,
            "POST",
            "/v1/completions?key=hidden",
            {"keys": KEYS},
            json=BODY | {"prompt": "hush"},
            headers=headers,
        )
        send_request(host, "POST", "/sign-in", {"keys": KEYS}, data={"key": KEYS[0]})
        send_request(host, "GET", "/v1/models%0Aforged%20line%1b", {"keys": KEYS})
    logged = [record.getMessage() for record in caplog.records if record.name == "qkv.serving"]
    assert logged[0].startswith("POST /v1/completions 200 ")
    assert len(logged) == 3
    assert all("\n" not in line for line in logged)
    for secret in (*KEYS, "hidden", "hush"):
        assert secret not in caplog.text


# Names and origins


def test_a_local_server_only_answers_to_its_own_names(host: ModelHost) -> None:
    local = {"names": AccessRules().names}
    for name in ("localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST"):
        assert (
            send_request(host, "GET", "/v1/models", local, headers={"host": name}).status_code
            == 200
        )
    for name in (
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::2]",
    ):
        response = send_request(host, "GET", "/v1/models", local, headers={"host": name})
        assert (response.status_code, response.json()["error"]["code"]) == (403, "wrong_host")
        assert (
            send_request(host, "GET", "/v1/models", headers={"host": name}).status_code == 200
        )  # without names, all are accepted


def test_cross_origin_requests_are_blocked(host: ModelHost) -> None:
    for origin in ("https://evil.example", "null", "http://localhost:9000", "file://", "http://["):
        response = send_request(
            host, "POST", "/v1/completions", json=BODY, headers={"origin": origin}
        )
        assert (response.status_code, response.json()["error"]["code"]) == (403, "wrong_origin")
        assert "access-control-allow-origin" not in response.headers
    for origin in ("http://localhost:8000", "https://localhost:8000"):
        response = send_request(
            host, "POST", "/v1/completions", json=BODY, headers={"origin": origin}
        )
        assert response.status_code == 200
        assert "access-control-allow-origin" not in response.headers


def test_an_allowed_origin(host: ModelHost) -> None:
    rules = {"cors": ("https://good.example",), "keys": KEYS}
    good = {"origin": "https://good.example"}
    asked = "authorization,content-type,x-stainless-os"
    before = send_request(
        host,
        "OPTIONS",
        "/v1/completions",
        rules,
        headers=good
        | {"access-control-request-method": "POST", "access-control-request-headers": asked},
    )
    assert before.status_code == 200
    assert before.headers["access-control-allow-origin"] == "https://good.example"
    assert before.headers["access-control-allow-headers"] == asked
    assert before.headers["access-control-allow-methods"] == "GET, POST"
    assert "access-control-allow-credentials" not in before.headers
    without = send_request(host, "POST", "/v1/completions", rules, json=BODY, headers=good)
    assert without.status_code == 401  # allowed, but not without a key
    key = {"authorization": f"Bearer {KEYS[0]}"}
    response = send_request(host, "POST", "/v1/completions", rules, json=BODY, headers=good | key)
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (
        200,
        "https://good.example",
    )
    assert "Origin" in response.headers["vary"]
    assert response.headers["access-control-expose-headers"] == "retry-after"
    assert response.headers["cross-origin-resource-policy"] == "cross-origin"
    bad = {"origin": "https://bad.example", "access-control-request-method": "POST"}
    assert send_request(host, "OPTIONS", "/v1/completions", rules, headers=bad).status_code == 403


# Headers


@pytest.mark.parametrize(
    "path", ["/", "/health", "/v1/models", "/nowhere", "/web/elements.js", "/web/insight/page.js"]
)
def test_every_response_has_security_headers(host: ModelHost, path: str) -> None:
    headers = send_request(host, "GET", path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["cache-control"] in ("no-cache", "no-store")
    assert "server" not in headers


def test_head_is_get_without_a_body(host: ModelHost) -> None:
    with running(host) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        for path in ("/health", "/", "/v1/models"):
            response = http.head(path)
            assert (response.status_code, response.content) == (200, b"")
            assert response.headers["content-length"] == http.get(path).headers["content-length"]
        assert http.head("/v1/completions").status_code == 405
        assert http.head("/nowhere").status_code == 404


def test_browsers_keep_the_scripts_of_the_page(host: ModelHost) -> None:
    path = "/web/insight/page.js"
    first = send_request(host, "GET", path)
    again = send_request(host, "GET", path, headers={"if-none-match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    changed = send_request(host, "GET", path, headers={"if-none-match": '"another"'})
    assert (changed.status_code, changed.content) == (200, first.content)
    assert {answer.headers["cache-control"] for answer in (first, again, changed)} == {"no-cache"}
    assert first.headers["etag"] == f'"{hashlib.sha256(first.content).hexdigest()}"'
    assert send_request(host, "GET", "/v1/models").headers["cache-control"] == "no-store"


def test_only_known_static_files_are_sent(host: ModelHost) -> None:
    response = send_request(host, "GET", "/web/insight/page.js")
    assert (response.status_code, response.headers["content-type"]) == (
        200,
        "text/javascript; charset=utf-8",
    )
    assert "export class Page" in response.text
    assert (
        send_request(host, "GET", "/web/insight/view.css")
        .headers["content-type"]
        .startswith("text/css")
    )
    for path in (
        "/web/insight/../page.py",
        "/web/insight/..%2Fpage.py",
        "/web/..%2f..%2fcli.py",
        "/web/insight/",
        "/web/%2e%2e/app.py",
        "/web/insight/page.py",
        "/web/insight/page.js%00",
        "/web/",
    ):
        assert send_request(host, "GET", path).status_code == 404


def test_the_page_allows_only_its_own_scripts(host: ModelHost) -> None:
    """All scripts are files, except the import map, which the policy allows by its hash."""
    response = send_request(host, "GET", "/", headers=PAGE)
    assert (response.status_code, response.headers["content-type"]) == (
        200,
        "text/html; charset=utf-8",
    )
    (content,) = re.findall(r'<script type="importmap">(.*?)</script>', response.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in response.headers["content-security-policy"]
    for tag in re.findall(r"<script(?! type=\"importmap\")[^>]*>", response.text):
        assert "src=" in tag
    for name in re.findall(r'(?:src|href)="(/web/[^"]+)"', response.text) + list(
        json.loads(content)["imports"].values()
    ):
        if not name.endswith("/"):
            assert send_request(host, "GET", name).status_code == 200, name
