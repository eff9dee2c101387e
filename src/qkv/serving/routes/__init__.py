"""Routes of the API: OpenAI's, qkv's own, health and metrics, and the playground."""

from qkv.imports import require

require("fastapi")
