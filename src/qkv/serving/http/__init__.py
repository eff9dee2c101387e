"""The HTTP server: ASGI app, middleware, API keys, error responses and server-sent events."""

from qkv.extras import require

require("fastapi")
require("uvicorn")
require("prometheus_client")
