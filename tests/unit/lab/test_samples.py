"""Samples that are shown during training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qkv.data.batches.framing import Frame
from qkv.data.batches.labelled import collate
from qkv.data.sources.examples import Example
from qkv.generation.classify import classify
from qkv.lab.samples import sample_predictions
from qkv.models import TaskModel
from support.small_task_models import ASKED, small_tuned


@pytest.mark.parametrize(
    ("offset", "scale", "digits"), [(1_700_000_006.0, 3.75, 2), (0.0, 1e-7, 9), (100.0, 20.0, 2)]
)
def test_numbers_are_in_the_units_of_the_data(offset: float, scale: float, digits: int) -> None:
    small = small_tuned("regress", "bert")
    config = small.model.config
    model = TaskModel(replace(config, head=replace(config.head, offset=offset, scale=scale))).eval()
    model.load_state_dict(small.model.state_dict())
    texts = ASKED["regress"]
    frame = Frame(**model.config.frame)
    framed = frame.encode(small.tokenizer, [Example(text, None, "here") for text in texts])
    references = [offset - scale, offset + 1.25 * scale]
    scaled = [(reference - offset) / scale for reference in references]
    batch = collate(list(framed), frame, [0, 0], scaled)
    predicted = [result.number for result in classify(model, small.tokenizer, texts)]
    samples = sample_predictions(model, small.tokenizer, batch)
    for sample, expected, reference in zip(samples, predicted, references, strict=True):
        number, _, rest = sample.rpartition(" -> ")[2].partition("   ")
        assert float(number) == pytest.approx(expected, abs=0.6 * 10**-digits)
        assert rest == f"(reference: {reference:.{digits}f})"
