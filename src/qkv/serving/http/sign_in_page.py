"""The sign-in page, where a browser enters a key; it has no script and shows no models."""

from __future__ import annotations

import html
import math
from urllib.parse import parse_qs

from starlette.responses import Response

from qkv.insight.render.page import hashed

STYLE = """
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; }
form { display: grid; gap: 0.75rem; width: min(22rem, 90vw); }
input, button { font: inherit; padding: 0.5rem 0.75rem; }
input, button { border-radius: 0.4rem; border: 1px solid GrayText; }
h1 { font-size: 1.4rem; margin: 0; }
p { margin: 0; }
"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>qkv: sign in</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<form method="post" action="/sign-in">
<h1>qkv</h1>
{message}
<label for="key">Key of this server</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button type="submit">Sign in</button>
</form>
</body>
</html>
"""
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
    policy = (
        f"default-src 'none'; style-src {hashed(STYLE)}; img-src data:; form-action 'self'; "
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

    alert = ""
    if message:
        alert = f'<p role="alert">{html.escape(message)}</p>'

    content = PAGE.format(style=STYLE, message=alert)

    return Response(content, status_code=status, headers=headers, media_type="text/html")
