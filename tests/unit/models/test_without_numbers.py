"""Models without numbers have the names and shapes of the others, and nothing is drawn for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.models import Config, HeadConfig, TaskModelConfig, build
from qkv.models.without_numbers import without_numbers
from support.small_training import MODELS

HEAD = HeadConfig(task="regress", delimiter=1, extract=2, padding=0)
CONFIGS = {**MODELS, "task": TaskModelConfig(backbone=MODELS["gpt"], head=HEAD)}


class Operations(TorchDispatchMode):
    """Records what PyTorch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def drawn(names: set[str]) -> set[str]:
    return names & {"normal_", "uniform_", "normal", "rand", "randn"}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_names_and_shapes_are_those_of_the_model(config: Config) -> None:
    with Operations() as usual:
        model = build(config)
    with Operations() as operations, without_numbers():
        shapes = build(config)

    expected = {name: (weight.shape, weight.dtype) for name, weight in model.state_dict().items()}
    found = {name: (weight.shape, weight.dtype) for name, weight in shapes.state_dict().items()}
    assert found == expected
    assert {weight.device.type for weight in shapes.state_dict().values()} == {"meta"}
    assert drawn(usual.names)
    assert not drawn(operations.names)


def test_outside_of_it_weights_are_drawn_as_before() -> None:
    torch.manual_seed(0)
    before = build(MODELS["gpt"]).state_dict()
    torch.manual_seed(0)
    with without_numbers():
        build(MODELS["gpt"])

    for name, weight in build(MODELS["gpt"]).state_dict().items():
        assert torch.equal(weight, before[name]), name
