"""The page that asks a browser for the key. It has no script, and says nothing of what is behind it."""

from __future__ import annotations

from starlette.responses import Response

from qkv.insight.page import hashed

STYLE = """
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; }
form { display: grid; gap: 0.75rem; width: min(22rem, 90vw); }
input, button { font: inherit; padding: 0.5rem 0.75rem; border-radius: 0.4rem; border: 1px solid GrayText; }
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


def sign_in_page(wrong: bool = False) -> Response:
    message = '<p role="alert">This is no key of this server.</p>' if wrong else ""
    policy = (
        f"default-src 'none'; style-src {hashed(STYLE)}; img-src data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    # With no-referrer a browser would send the form with `Origin: null`, which is no page of ours.
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "same-origin", "WWW-Authenticate": "Bearer"}
    content = PAGE.format(style=STYLE, message=message)
    return Response(content, status_code=401, headers=headers, media_type="text/html")
