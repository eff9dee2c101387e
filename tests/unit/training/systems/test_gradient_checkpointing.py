"""To compute a block again on the way back gives the same gradients, and keeps less on the way
there.
"""

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

WITH_BLOCKS = [family for family in MODELS if family != "rnn"]


def learn(model: Model, batch: Batch, cast: bool = False) -> tuple[Tensor, dict[str, Tensor], int]:
    """The loss, the gradients, and the bytes kept for the way back."""
    objective = Objective(model)
    if cast:
        objective.reader = Cast(FeatureExtractor(model), torch.float64)
    kept: dict[int, int] = {}

    def padding_mask(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    torch.manual_seed(3)  # of dropout
    with torch.autograd.graph.saved_tensors_hooks(padding_mask, lambda tensor: tensor):
        loss = objective(batch)
    loss.backward()
    gradients = {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }
    return (
        loss.detach(),
        gradients,
        sum(size for place, size in kept.items() if place not in weights),
    )


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("family", WITH_BLOCKS)
def test_gradients_are_the_same_and_less_is_kept(family: str, cast: bool) -> None:
    """With dropout, whose draws must be those of the first time."""
    batch = random_batch(family, rows=12)
    plain, again = build(MODELS[family]), build(MODELS[family])
    again.load_state_dict(plain.state_dict())
    recompute_blocks(again)
    loss, gradients, kept = learn(plain, batch, cast)
    same_loss, same_gradients, kept_less = learn(again, batch, cast)
    assert torch.equal(loss, same_loss)
    assert gradients.keys() == same_gradients.keys()
    for name in gradients:
        torch.testing.assert_close(
            same_gradients[name], gradients[name], rtol=1e-6, atol=1e-7, msg=name
        )
    assert kept_less < 0.6 * kept


def test_names_of_weights_stay() -> None:
    model = build(MODELS["gpt"])
    names = [name for name, _ in model.named_parameters()]
    recompute_blocks(model)
    assert [name for name, _ in model.named_parameters()] == names
    assert list(model.state_dict()) == list(build(MODELS["gpt"]).state_dict())


def test_a_model_with_memory(double_by_default: None) -> None:
    config = GPTConfig(**SIZE, context=4, memory=8, position="relative")
    plain, again = GPT(config), GPT(config)
    again.load_state_dict(plain.state_dict())
    recompute_blocks(again)
    batch = Batch(torch.randint(5, 64, (2, 12)), torch.randint(5, 64, (2, 12)))
    loss, gradients, _ = learn(plain, batch)
    same_loss, same_gradients, _ = learn(again, batch)
    torch.testing.assert_close(same_loss, loss)
    for name in gradients:
        torch.testing.assert_close(same_gradients[name], gradients[name], msg=name)


def test_words_are_still_made_one_by_one() -> None:
    """Samples while training: nothing is computed again there, and the state is another one."""
    plain, again = build(MODELS["gpt"]).eval(), build(MODELS["gpt"]).eval()
    again.load_state_dict(plain.state_dict())
    recompute_blocks(again)
    ids = torch.randint(5, 64, (2, 6))
    state = again.start()
    with torch.no_grad():
        logits = torch.cat(
            [again.decode(ids[:, place : place + 1], state) for place in range(6)], dim=1
        )
        torch.testing.assert_close(logits, plain(ids))


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(
        ValueError, match="recompute: this model has no blocks to recompute; leave it out"
    ):
        recompute_blocks(build(replace(RNNConfig(), vocabulary=20, width=8)))
