"""The sign-in page, where a browser enters a key; it has no script and shows no models."""

from __future__ import annotations

import html
import math
from importlib.resources import files
from urllib.parse import parse_qs

from starlette.responses import Response

from qkv.insight.render.page import hashed

MAX_BYTES = 4096
MAX_FIELDS = 8
FORM = "application/x-www-form-urlencoded"


def key_in(body: bytes) -> str:
    """The key in a submitted form."""
    if len(body) > MAX_BYTES:
        raise ValueError(f"body: expected a form of at most {MAX_BYTES:,} bytes")

    try:
        fields = parse_qs(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS
        )
    except ValueError as error:
        raise ValueError(f"body: expected a form of at most {MAX_FIELDS} fields") from error

    keys = fields.get("key", [])
    if len(keys) != 1:
        raise ValueError(f"key: expected this field once, not {len(keys)} times")

    return keys[0].strip()


def sign_in_page(message: str = "", status: int = 401, wait: float | None = None) -> Response:
    """The page with a message; `wait` is the number of seconds until the form may be sent again."""
    page = files("qkv.serving").joinpath("web", "sign_in.html").read_text(encoding="utf-8")
    style = page.partition("<style>")[2].partition("</style>")[0]
    policy = (
        f"default-src 'none'; style-src {hashed(style)}; img-src data:; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
    # With no-referrer a browser would send `Origin: null`, which is not this server's origin.
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "same-origin",
        "WWW-Authenticate": "Bearer",
    }
    if wait is not None:
        headers["Retry-After"] = str(max(1, math.ceil(wait)))

    if message:
        alert = f'<p role="alert">{html.escape(message)}</p>'
        page = page.replace("<!-- message -->", alert)

    return Response(page, status_code=status, headers=headers, media_type="text/html")
