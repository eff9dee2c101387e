"""The HTTP server: ASGI app, middleware, API keys, error responses and server-sent events."""
