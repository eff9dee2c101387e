"""A sparse autoencoder: a vector as a sum of few of many directions, its features.

x is about b + f_1 d_1 + f_2 d_2 + ..., with f = ReLU(W (x - b) + c). The directions have length 1.
Few features are active because only the k largest stay (top-k), or because their sum is part of the
loss (relu). Vectors are first divided by one number, so that their mean square is 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from qkv import storage

Sparsity = Literal["top-k", "relu"]


class DictionaryConfig(NamedTuple):
    """The sizes of an autoencoder, and the layer that it belongs to."""

    width: int
    features: int
    sparsity: Sparsity
    active: int
    """With top-k: the features that stay."""
    layer: int


class SparseAutoencoder(nn.Module):
    """Encoder, decoder and bias of a dictionary of features."""

    def __init__(self, config: DictionaryConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        directions = torch.randn(config.features, config.width, generator=generator)
        directions = directions / directions.norm(dim=1, keepdim=True)
        self.directions = nn.Parameter(directions)
        self.encoder = nn.Parameter(directions.clone())
        self.threshold = nn.Parameter(torch.zeros(config.features))
        self.bias = nn.Parameter(torch.zeros(config.width))
        self.register_buffer("scale", torch.ones(()))
        self.scale: Tensor

    def encode(self, x: Float[Tensor, "*n E"]) -> Float[Tensor, "*n F"]:
        """How active each feature is: 0 or more."""
        scaled = x / self.scale - self.bias
        activity = torch.relu(scaled @ self.encoder.T + self.threshold)
        if self.config.sparsity == "relu" or self.config.active >= self.config.features:
            return activity

        best, places = activity.topk(self.config.active, dim=-1)
        return torch.zeros_like(activity).scatter(-1, places, best)

    def decode(self, activity: Float[Tensor, "*n F"]) -> Float[Tensor, "*n E"]:
        """The vector that these features add up to."""
        return (activity @ self.directions + self.bias) * self.scale

    def forward(self, x: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        """The reconstruction of a vector."""
        return self.decode(self.encode(x))

    @torch.no_grad()
    def normalise(self) -> None:
        """Give all directions length 1: otherwise small activities would cost nothing."""
        lengths = self.directions.norm(dim=1, keepdim=True).clamp(min=1e-8)
        self.directions.div_(lengths)

    def save(self, path: Path) -> None:
        """Write a safetensors file with the config in its metadata."""
        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        content = save(tensors, {"sparse_autoencoder": json.dumps(self.config._asdict())})
        with storage.replacing(path, len(content)) as staged:
            staged.write_bytes(content)

    @classmethod
    def load(cls, path: Path | str) -> SparseAutoencoder:
        """Read a file that `save` has written.

        Raises:
            ValueError: If it is no such file.
        """
        storage.check_regular(Path(path))
        try:
            with safe_open(path, "pt") as file:
                config = DictionaryConfig(**json.loads(file.metadata()["sparse_autoencoder"]))
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, json.JSONDecodeError):
            raise ValueError(
                f"{path}: expected a sparse autoencoder that qkv sae has written"
            ) from None

        result = cls(config)
        result.load_state_dict(weights)
        return result.eval()
