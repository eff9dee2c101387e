"""Exercises 13 to 16: other right solutions pass, and other wrong ones fail."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from qkv.learn.course import course
from qkv.learn.expectations import Failed
from qkv.learn.result_kinds import expect_number, expect_results
from qkv.learn.run_checks import run_checks
from support.student_files import report_with

LAST_STATE = "states[torch.arange(len(lengths)), lengths - 1]"
WEIGHTS = "scores.masked_fill(is_padding, -torch.inf).softmax(-1)"
CONTEXT = "    context = weights.unsqueeze(1) @ states\n    return context.squeeze(1), weights"
SHIFTED = "torch.cat([first, target[:, :-1]], dim=1), target"
TOKEN_LOSS = "F.cross_entropy(logits[is_token], target[is_token])"
ATTEND = "output, _ = masked_attend(query, key, value, mask)"
CROSS = "x + self.cross_attention(self.cross_norm(x), source, tokens)"
SHOWN = "    return torch.where(chosen, shown, ids)"
LABELS = "    return torch.where(chosen, ids, IGNORE)"
MASKED_LOSS = "    return total / is_chosen.sum().clamp(min=1)"
LOW_RANK = "(x @ self.A.T @ self.B.T)"
FREEZE = "    model.requires_grad_(False)\n"
UNIFORM = "torch.empty(rank, inputs).uniform_(-bound, bound)"
MAJORITY = "most_frequent = y.bincount().argmax()"
ZERO = "    result[..., head * width : (head + 1) * width] = 0\n"
STEP = """        slopes = torch.autograd.grad(loss, [weight, bias])
        with torch.no_grad():
            weight -= rate * slopes[0]
            bias -= rate * slopes[1]
"""
BACKWARD = """        loss.backward()
        for one in (weight, bias):
            one.data -= rate * one.grad
            one.grad = None
"""
HOOK = """        handle = attention.output.register_forward_pre_hook(
            lambda module, inputs: (knock_out(inputs[0], head, attention.heads),)
        )
        after = next_token_loss(model(ids), ids)
        handle.remove()
"""
NO_COLUMNS = """        kept = attention.output.weight.clone()
        width = kept.shape[1] // attention.heads
        attention.output.weight[:, head * width : (head + 1) * width] = 0
        after = next_token_loss(model(ids), ids)
        attention.output.weight.copy_(kept)
"""

RIGHT = [
    (
        "encoder_decoder",
        "torch.tanh(x @ w_x.T + state @ w_h.T + bias)",
        "(F.linear(x, w_x) + F.linear(state, w_h, bias)).tanh()",
    ),
    (
        "encoder_decoder",
        LAST_STATE,
        "torch.stack([row[n - 1] for row, n in zip(states, lengths.tolist())])",
    ),
    ("encoder_decoder", WEIGHTS, "(scores - 1e9 * is_padding).softmax(-1)"),
    ("encoder_decoder", CONTEXT, "    return (weights.unsqueeze(2) * states).sum(1), weights"),
    ("encoder_decoder", SHIFTED, "F.pad(target[:, :-1], (1, 0), value=start), target.clone()"),
    (
        "encoder_decoder",
        TOKEN_LOSS,
        "F.cross_entropy(logits.transpose(1, 2), target.masked_fill(~is_token, -100))",
    ),
    (
        "encoder_decoder",
        ATTEND,
        "output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)",
    ),
    (
        "bert_masking",
        SHOWN,
        "    ids = ids.clone()\n    ids[chosen] = shown[chosen]\n    return ids",
    ),
    ("bert_masking", LABELS, "    return ids.masked_fill(~chosen, IGNORE)"),
    (
        "bert_masking",
        MASKED_LOSS,
        "    return total / is_chosen.sum() if is_chosen.any() else logits.sum() * 0",
    ),
    ("bert_masking", "[:, None, None, :]", ".unsqueeze(1).unsqueeze(1)"),
    ("lora", LOW_RANK, "(x @ (self.B @ self.A).T)"),
    ("lora", FREEZE, "    for one in model.parameters():\n        one.requires_grad = False\n"),
    ("lora", UNIFORM, "(2 * torch.rand(rank, inputs) - 1) / inputs**0.5"),
    ("probe", STEP, BACKWARD),
    ("probe", MAJORITY, "most_frequent = y.mode().values"),
    ("probe", HOOK, NO_COLUMNS),
]
"""Exercise, lines of the solution, other right lines."""

WRONG = [
    # The RNN and its attention
    ("encoder_decoder", "torch.stack(states, dim=1)", "torch.stack(states, dim=1).flip(1)"),
    ("encoder_decoder", "torch.stack(states, dim=1)", "torch.stack(states)"),
    ("encoder_decoder", LAST_STATE, "states[torch.arange(len(lengths)), lengths - 1].detach() * 2"),
    (
        "encoder_decoder",
        WEIGHTS,
        "(scores / scores.shape[1] ** 0.5 - 1e9 * is_padding).softmax(-1)",
    ),
    ("encoder_decoder", "lengths.unsqueeze(1)\n    weights", "lengths.max()\n    weights"),
    ("encoder_decoder", CONTEXT, "    return (weights.detach()[:, None] @ states)[:, 0], weights"),
    ("encoder_decoder", CONTEXT, "    return weights, (weights[:, None] @ states)[:, 0]"),
    ("encoder_decoder", SHIFTED, "torch.cat([first * 1.0, target[:, :-1] * 1.0], dim=1), target"),
    ("encoder_decoder", SHIFTED, "torch.cat([first, target], dim=1), target"),
    (
        "encoder_decoder",
        "< lengths.unsqueeze(1)\n    return",
        "<= lengths.unsqueeze(1)\n    return",
    ),
    # The Transformer's decoder
    ("encoder_decoder", "self.value(source)", "source"),
    ("encoder_decoder", "self.key(source)", "self.key(source.detach())"),
    ("encoder_decoder", ATTEND, "output, _ = masked_attend(query, key, value, mask[:1])"),
    (
        "encoder_decoder",
        CROSS,
        "x + self.cross_attention(self.cross_norm(x), source.detach(), tokens)",
    ),
    ("encoder_decoder", CROSS, "x + self.cross_attention(self.cross_norm(x), source, tokens[:1])"),
    ("encoder_decoder", "causal_mask(x.shape[1])", "causal_mask(x.shape[1] + 1)[1:, :-1]"),
    # Masking
    ("bert_masking", "torch.isin(ids, special)", "(ids < len(special))"),
    ("bert_masking", "(uniform < rate)", "(torch.rand_like(uniform) < rate)"),
    ("bert_masking", "torch.where(uniform < 0.8, mask_id", "torch.where(uniform < 0.8, 3"),
    ("bert_masking", SHOWN, "    return torch.where(chosen, shown, ids).float()"),
    ("bert_masking", LABELS, "    return torch.where(chosen, ids, -1)"),
    ("bert_masking", MASKED_LOSS, "    return (total / is_chosen.sum().clamp(min=1)).detach()"),
    ("bert_masking", "        return self.norm(x)", "        return self.norm(x.detach())"),
    ("bert_masking", "        mask = b", "        ids = ids[:1]\n        mask = b"),
    # Adapters
    ("lora", UNIFORM, "torch.empty(1, inputs).uniform_(-bound, bound).repeat(rank, 1)"),
    ("lora", UNIFORM, "torch.empty(rank, inputs).uniform_(-bound / 9, bound / 9)"),
    ("lora", LOW_RANK, "(x @ self.A.T.detach() @ self.B.T)"),
    ("lora", LOW_RANK, "(torch.relu(x @ self.A.T) @ self.B.T)"),
    ("lora", "self.linear(x) +", "self.linear(x.detach()) +"),
    (
        "lora",
        "            new.bias.copy_(old.bias)",
        "            new.bias = old.bias\n        pass",
    ),
    ("lora", "model.blocks:", "model.blocks[:1]:"),
    ("lora", FREEZE, "    model.blocks.requires_grad_(False)\n"),
    # A probe and a head
    ("probe", "y[test]\n", "y[train]\n"),
    ("probe", "order[:-held], order[-held:]", "order[: len(order) // 2], order[-held:]"),
    ("probe", "range(steps)", "range(steps - 1)"),
    ("probe", "range(steps)", "range(100)"),
    ("probe", "rate * slopes", "0.5 * slopes"),
    ("probe", MAJORITY, "most_frequent = 2 + 0 * y.bincount().argmin()"),
    ("probe", "majority(y, y_test), control", "control, majority(y, y_test)"),
    ("probe", ZERO, "    result[..., head * width : head * width + 1] = 0\n"),
    ("probe", "(after - before)", "(after - before).abs()"),
    ("probe", "(after - before)", "(after / before)"),
    ("probe", "knock_out(inputs[0], head,", "knock_out(inputs[0], 0,"),
]
"""Exercise, lines of the solution, lines that must not pass."""


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("name", "old", "new"), RIGHT)
def test_another_right_solution_passes(name: str, old: str, new: str, tmp_path: Path) -> None:
    report = report_with(tmp_path, name, old, new)
    messages = [result.message for result in report.results if result.state != "passed"]
    assert (messages, report.error) == ([], "")


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("name", "old", "new"), WRONG)
def test_another_wrong_solution_fails(name: str, old: str, new: str, tmp_path: Path) -> None:
    report = report_with(tmp_path, name, old, new)
    assert not report.error
    assert report.state == "failed"


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.tanh(", "torch.sigmoid("),
        ("torch.tanh(projected_query + projected_key) @ v", "projected_query + projected_key"),
        ("unsqueeze(-3)", "unsqueeze(-9)"),
    ],
    ids=["another function", "another shape", "an error"],
)
def test_a_wrong_score_of_exercise_2_is_named(old: str, new: str, tmp_path: Path) -> None:
    report_with(tmp_path, "encoder_decoder", "", "")
    for name in list(sys.modules):
        if re.fullmatch(r"ex\d\d_\w+", name):
            del sys.modules[name]

    scores = tmp_path / "ex02_scores.py"
    text = scores.read_text(encoding="utf-8")
    scores.write_text(text.replace(old, new), encoding="utf-8")
    report = run_checks(course()["encoder_decoder"], tmp_path / "ex13_encoder_decoder.py")
    failed = [result.message for result in report.results if result.state == "failed"]
    assert "exercise 2 is red" in failed[0]


def test_a_number_is_expected() -> None:
    expect_number(0.5, 0.5, "share")
    with pytest.raises(Failed, match="in percent"):
        expect_number(50, 0.5, "share", {"in percent": 50})
    with pytest.raises(Failed, match="return statement"):
        expect_number(None, 0.5, "share")


def test_several_results_are_expected() -> None:
    expect_results((1, 2), ("a", "b"), "pair")
    with pytest.raises(Failed, match="expected 2 results, a, b, not a tuple of 3"):
        expect_results((1, 2, 3), ("a", "b"), "pair")
