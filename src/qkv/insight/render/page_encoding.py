"""Encoding of a page's data: weights in base64, numbers and texts as JSON, blocks of HTML."""

from __future__ import annotations

import base64
import html
import json
import math
import zlib
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

Code = Literal["linear16", "root8"]
"""How weights are encoded: 16 bits, or 8 bits of their root."""


def packed(weights: Float[Tensor, "*n"], code: Code, largest: float) -> str:
    """Weights as integers of the code, deflated, in base64."""
    share = (weights.float() / largest).nan_to_num(0).clamp_(0, 1)
    if code == "root8":
        coded = share.sqrt_().mul_(255).round_().to(torch.uint8).numpy()
    else:
        coded = share.mul_(65535).round_().to(torch.int32).numpy().astype("<u2")

    return base64.b64encode(zlib.compress(coded.tobytes(), level=1)).decode()


def as_json(value: Any) -> str:
    """JSON in ASCII, without the characters that could end a block or begin one."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def block(name: str, content: str, kind: str = "text/plain") -> str:
    return f'<script type="{kind}" id="qkv.{html.escape(name)}">{content}</script>\n'


def numbers(values: Float[Tensor, "*n"]) -> Any:
    """Nested lists with five digits, as many as are shown; None if any value is not finite."""
    if not bool(values.isfinite().all()):
        return None

    return rounded(values.tolist())


def rounded(values: Any) -> Any:
    """Numbers in nested lists with five digits; None for those that are not finite."""
    if not isinstance(values, float):
        return list(map(rounded, values))
    if not math.isfinite(values):
        return None

    return float(f"{values:.5g}")
