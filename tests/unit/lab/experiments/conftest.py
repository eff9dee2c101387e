"""What the tests of several experiments share."""

from __future__ import annotations

import pytest

from qkv.lab.experiments.translation import translators as tr
from qkv.training.run_config import DataConfig
from qkv.training.setup.training_task import TrainingTask, assemble


@pytest.fixture(scope="module")
def small_task() -> TrainingTask:
    """2,000 sentences in place of 120,000, in small batches."""
    data = DataConfig(data=("turkish:valid",), validation=("turkish:test",), tokenizer="words")
    return assemble(tr.rnn(2), data, batch_tokens=64, seed=0)
