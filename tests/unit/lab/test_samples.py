"""What a model says while it is trained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qkv.data.batches.framing import Frame
from qkv.data.batches.labelled import join
from qkv.data.sources.examples import Example
from qkv.generation.classify import classify
from qkv.lab.samples import answers
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
    framed = frame.encode(small.tokenizer, [Example(each, None, "here") for each in texts])
    true = [offset - scale, offset + 1.25 * scale]
    batch = join(list(framed), frame, [0, 0], [(each - offset) / scale for each in true])
    said = [each.number for each in classify(model, small.tokenizer, texts)]
    for told, one, other in zip(answers(model, small.tokenizer, batch), said, true, strict=True):
        number, _, rest = told.rpartition(" -> ")[2].partition("   ")
        assert float(number) == pytest.approx(one, abs=0.6 * 10**-digits)
        assert rest == f"(it should be: {other:.{digits}f})"
