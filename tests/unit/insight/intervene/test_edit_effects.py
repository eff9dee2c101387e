"""The effects of edits equal two forward passes with and without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from qkv.generation.text import complete
from qkv.generation.translate import translate_texts
from qkv.insight.inspect.attention_edits import Edit, apply_edits
from qkv.insight.inspect.model_input import ids_of, logits, read
from qkv.insight.intervene.edit_effects import edit_effects, kl_divergence
from qkv.insight.intervene.steering import Steering
from qkv.models import HeadConfig, TaskModel, TaskModelConfig
from qkv.text import train
from support.families import bert, gpt, rnn, transformer
from support.sentences import SENTENCES

TOKENIZER = train("words", SENTENCES, 80)
TEXT = "the cat sat on the mat"
SIZE: dict[str, Any] = {"vocabulary": TOKENIZER.vocabulary}


def test_all_effects_on_a_gpt() -> None:
    model, edits = gpt(**SIZE), [Edit.read("0.1=off"), Edit.read("1.2:3>1=0.9")]
    reading = read(model, TOKENIZER, TEXT)
    result = edit_effects(model, TOKENIZER, reading, edits, top=3, length=6)
    with torch.no_grad():
        before = logits(model, reading)[0]
        with apply_edits(model, edits):
            after = logits(model, reading)[0]
    for guesses, scores in ((result.before, before), (result.after, after)):
        assert guesses is not None
        probability, ids = scores.softmax(-1).topk(3)
        assert [[guess.id for guess in row] for row in guesses] == ids.tolist()
        assert [guess.probability for guess in guesses[2]] == pytest.approx(
            probability[2].tolist(), abs=1e-6
        )
    expected = F.kl_div(
        after.log_softmax(-1), before.log_softmax(-1), log_target=True, reduction="none"
    ).sum(-1)
    assert result.moved.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert result.moved[:1] > 0  # also at the first token
    ids = ids_of(model, reading)["ids"][0]
    assert result.loss_before == pytest.approx(
        float(F.cross_entropy(before[:-1], ids[1:])), abs=1e-5
    )
    assert result.loss_after == pytest.approx(float(F.cross_entropy(after[:-1], ids[1:])), abs=1e-5)
    assert [result.text_before] == complete(
        model.float(), TOKENIZER, [TEXT], length=6, temperature=0
    )
    assert result.text_after != result.text_before


def test_an_edge_changes_no_earlier_position() -> None:
    model = gpt(**SIZE)
    reading = read(model, TOKENIZER, TEXT)
    moved = edit_effects(model, TOKENIZER, reading, [Edit.read("0.0:3>1=off")], length=0).moved
    assert not moved[:3].any()
    assert (moved[3:] > 0).all()


@pytest.mark.parametrize("make", [transformer, rnn])
def test_the_translation_changes(make: Any) -> None:
    model = make(**SIZE)
    reading = read(model, TOKENIZER, source=TEXT, target="the dog")
    result = edit_effects(model, TOKENIZER, reading, [Edit(0, 0, 0.0, None, "cross")], length=6)
    ((_, translations),) = translate_texts(
        [model.float()], TOKENIZER, [TEXT], beams=1, length=6, forbidden=()
    )
    assert result.text_before is not None
    assert result.text_before.strip() == translations[0].text
    assert len(result.moved) == len(reading.text.ids) == 3
    assert result.loss_before != result.loss_after


def test_a_bert_with_and_without_its_token_head() -> None:
    model = bert(**SIZE)
    reading = read(model, TOKENIZER, "the [mask] sat")
    result = edit_effects(model, TOKENIZER, reading, [Edit(0, 1)])
    assert (result.loss_before, result.text_before) == (None, None)
    assert result.before is not None
    assert len(result.before) == len(reading.text.ids)
    encoder = bert(**SIZE, mlm_head=False)
    result = edit_effects(encoder, TOKENIZER, reading, [Edit(0, 1)])
    assert result.before is None
    assert (result.moved > 0).all()


def test_the_prediction_of_a_task_model_changes() -> None:
    backbone = bert(**SIZE, pooler=False, next_sentence=False, mlm_head=False)
    head = HeadConfig(
        task="classify",
        labels=("good", "bad"),
        pooling="first",
        start=TOKENIZER.start,
        padding=0,
        delimiter=TOKENIZER.end or 0,
        extract=TOKENIZER.end or 0,
    )
    model = TaskModel(TaskModelConfig(backbone=backbone.config, head=head)).double().eval()
    model.backbone.load_state_dict(backbone.state_dict())
    reading = read(model, TOKENIZER, TEXT)
    result = edit_effects(model, TOKENIZER, reading, [Edit(0, None)])
    assert result.before is not None
    assert result.after is not None
    assert len(result.before) == 1
    first = torch.zeros(1, 1, dtype=torch.int64)
    scores = model(ids_of(model, reading)["ids"], target_positions=first)[0, 0]
    expected = dict(zip(("good", "bad"), scores.softmax(-1).tolist(), strict=True))
    assert {guess.text: guess.probability for guess in result.before[0]} == pytest.approx(expected)
    assert result.before != result.after


def test_invalid_edits_are_refused() -> None:
    model = gpt(**SIZE)
    reading = read(model, TOKENIZER, TEXT)
    with pytest.raises(ValueError, match=r"change: .*one or more"):
        edit_effects(model, TOKENIZER, reading, [])
    with pytest.raises(ValueError, match=r"top: .*not 0"):
        edit_effects(model, TOKENIZER, reading, [Edit(0, 0)], top=0)
    with pytest.raises(ValueError, match=r"change: .*no token 9, .*6 tokens"):
        edit_effects(model, TOKENIZER, reading, [Edit.read("0.0:9>1=off")])


def test_numbers_that_are_not_finite_are_no_effect_of_0() -> None:
    model = gpt(**SIZE)
    reading = read(model, TOKENIZER, TEXT)
    steering = Steering(0, torch.full((model.config.width,), torch.inf))
    with pytest.raises(ValueError, match="not finite after the change; expected a smaller one"):
        edit_effects(model, TOKENIZER, reading, [], length=0, steering=steering)
    torch.nn.init.constant_(model.stack.blocks[1].attention.output.weight, torch.nan)
    with pytest.raises(ValueError, match="the model's numbers are not finite, so there is nothing"):
        edit_effects(model, TOKENIZER, reading, [Edit(0, 0)], length=0)
    assert bool(kl_divergence(torch.zeros(1, 2), torch.tensor([[0.0, torch.nan]])).isnan())
    never = torch.tensor([[0.0, 1.0, -torch.inf]])  # a token of probability 0 adds 0
    expected = kl_divergence(never[:, :2], torch.zeros(1, 2))
    assert torch.equal(kl_divergence(never, torch.tensor([[0.0, 0.0, -torch.inf]])), expected)
