"""The HTTP server: ASGI app, middleware, API keys, error responses and server-sent events."""

from qkv.imports import require

require("fastapi")
require("uvicorn")
require("prometheus_client")
