"""Serving: one engine for all requests, an API that real clients use unchanged, and the playground."""
