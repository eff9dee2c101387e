"""Gradient checkpointing gives the same gradients and stores less for the backward pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from qkv.data.batches.batch import Batch
from qkv.models import GPT, GPTConfig, Model, RNNConfig, build
from qkv.training.objective import FeatureExtractor, Objective
from qkv.training.systems.gradient_checkpointing import recompute_blocks
from qkv.training.systems.precision import Cast
from support.small_training import MODELS, SIZE, random_batch

WITH_BLOCKS = [family for family in MODELS if family not in ("rnn", "rnn-lm")]


def train_once(
    model: Model, batch: Batch, cast: bool = False
) -> tuple[Tensor, dict[str, Tensor], int]:
    """The loss, the gradients, and the bytes stored for the backward pass."""
    objective = Objective(model)
    if cast:
        objective.reader = Cast(FeatureExtractor(model), torch.float64)

    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    stored: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            stored[storage.data_ptr()] = storage.nbytes()

        return tensor

    torch.manual_seed(3)  # of dropout
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = objective(batch)

    loss.backward()
    gradients = {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }
    return loss.detach(), gradients, sum(stored.values())


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("family", WITH_BLOCKS)
def test_gradients_are_the_same_and_less_is_stored(family: str, cast: bool) -> None:
    """With dropout, which must be the same in the recomputation."""
    batch = random_batch(family, rows=12)
    plain = build(MODELS[family])
    again = build(MODELS[family])
    again.load_state_dict(plain.state_dict())
    recompute_blocks(again)
    loss, gradients, stored = train_once(plain, batch, cast)
    same_loss, same_gradients, stored_less = train_once(again, batch, cast)
    assert torch.equal(loss, same_loss)
    assert gradients.keys() == same_gradients.keys()
    for name in gradients:
        torch.testing.assert_close(
            same_gradients[name], gradients[name], rtol=1e-6, atol=1e-7, msg=name
        )

    assert stored_less < 0.6 * stored


def test_names_of_weights_stay() -> None:
    model = build(MODELS["gpt"])
    names = [name for name, _ in model.named_parameters()]
    recompute_blocks(model)
    assert [name for name, _ in model.named_parameters()] == names
    assert list(model.state_dict()) == list(build(MODELS["gpt"]).state_dict())


def test_a_model_with_memory(double_by_default: None) -> None:
    config = GPTConfig(**SIZE, context=4, memory=8, position="relative")
    plain = GPT(config)
    again = GPT(config)
    again.load_state_dict(plain.state_dict())
    recompute_blocks(again)
    batch = Batch(torch.randint(5, 64, (2, 12)), torch.randint(5, 64, (2, 12)))
    loss, gradients, _ = train_once(plain, batch)
    same_loss, same_gradients, _ = train_once(again, batch)
    torch.testing.assert_close(same_loss, loss)
    for name in gradients:
        torch.testing.assert_close(same_gradients[name], gradients[name], msg=name)


def test_decoding_with_a_kv_cache_still_works() -> None:
    """Samples are generated while training, without recomputation and with another state."""
    plain = build(MODELS["gpt"]).eval()
    again = build(MODELS["gpt"]).eval()
    again.load_state_dict(plain.state_dict())
    recompute_blocks(again)
    ids = torch.randint(5, 64, (2, 6))
    state = again.start()
    with torch.no_grad():
        steps = [again.decode(column, state) for column in ids.split(1, dim=1)]
        logits = torch.cat(steps, dim=1)
        torch.testing.assert_close(logits, plain(ids))


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"recompute: .*no blocks"):
        recompute_blocks(build(replace(RNNConfig(), vocabulary=20, width=8)))
