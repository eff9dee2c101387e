"""Fine-tuning without a head: a GPT that learns to chat, and an encoder-decoder that learns to
translate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from qkv.data.batches.chat import (
    Conversation,
    ConversationData,
    encode_conversations,
    open_conversations,
)
from qkv.data.batches.order import draws
from qkv.data.batches.paired import PairedData
from qkv.data.sources.source import open_pairs
from qkv.data.tokens.prepare import prepare_pairs
from qkv.models.gpt import GPT
from qkv.models.registry import Config, Model, build, with_weights
from qkv.models.resize_vocabulary import with_vocabulary
from qkv.models.rnn import RNN
from qkv.models.transformer import Transformer
from qkv.text import Tokenizer
from qkv.training.finetune.adapter_export import save_adapted
from qkv.training.finetune.finetune_config import USUAL_WARMUP, FinetuneConfig, FinetuneRunConfig
from qkv.training.finetune.finetune_examples import (
    MOST_HELD_OUT,
    check_enough,
    of_validation,
    split,
)
from qkv.training.finetune.freeze import freeze, learning_in, passed_through
from qkv.training.finetune.labelled_task import (
    SHAPES,
    Start,
    fingerprint_of,
    open_start,
    padding_of,
    rate_of,
    with_dropout,
)
from qkv.training.setup.training_task import TrainingTask
from qkv.training.systems.distributed import device_named

LONGEST_CHAT = 1024
CHAT_MARKS = ("<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""For a model that knows no template: two new tokens around each message, as many models of chats
have them.
"""


def chat_task(tune: FinetuneConfig, run: FinetuneRunConfig) -> TrainingTask:
    """Conversations packed into rows, none seeing another; only the answers are learned."""
    training, validation, sources = read_conversations(tune, run.seed)
    start = open_start(tune.model)
    if not isinstance(start.model, GPT) or start.model.config.memory:
        raise ValueError(
            f"model: {tune.model} does not go on from a text; chat expects a GPT without memory"
        )

    model, tokenizer, notes = start.model, start.tokenizer, []
    if tokenizer.chat_template is None:
        tokenizer = tokenizer.with_special(CHAT_MARKS, chat_template=CHAT_TEMPLATE)
        grown = with_vocabulary(model, max(model.config.vocabulary, tokenizer.vocabulary), run.seed)
        assert isinstance(grown, GPT)
        model = grown
        notes.append(
            f"the tokenizer had no chat template: it now has a plain one, and {' and '.join(CHAT_MARKS)}"
        )
        if tune.train != "everything":
            raise ValueError(
                "train: this model never saw a chat's marks, so all of it must learn; expected everything"
            )

    context = min(tune.context or LONGEST_CHAT, model.config.context)

    multiple = SHAPES if device_named(run.device).type == "cuda" else 1

    def batches(conversations: Sequence[Conversation]) -> ConversationData:
        encoded = encode_conversations(tokenizer, conversations)
        return ConversationData(
            encoded, context, run.batch, padding_of(tokenizer), run.seed, multiple=multiple
        )

    data, held_out = batches(training), batches(validation)
    notes.append(f"{len(training):,} conversations to train on, {len(validation):,} to validate on")
    if cut := data.cut + held_out.cut:
        notes.append(
            f"{cut:,} conversations are longer than {context:,} tokens, and lose their end"
        )

    if left_out := data.left_out + held_out.left_out:
        notes.append(
            f"{left_out:,} conversations have no answer within {context:,} tokens, and are left out"
        )

    fingerprint = fingerprint_of(start, sources, tokenizer)

    return language_task(
        tune, run, model, tokenizer, data, held_out, start, fingerprint, tuple(notes)
    )


def read_conversations(
    tune: FinetuneConfig, seed: int
) -> tuple[list[Conversation], list[Conversation], dict[str, str]]:
    source = open_conversations(tune.data)
    training, sources = list(source), source.fingerprint()
    if tune.validation:
        held_out = open_conversations(tune.validation)
        validation, sources = list(held_out), sources | of_validation(held_out)
    else:
        training, validation = split(training, tune.held_out)

    return some_first(training, tune.examples, seed), validation, sources


def some_first(training: list[Conversation], count: int | None, seed: int) -> list[Conversation]:
    """So many, chosen by the seed."""
    if count is None:
        return training

    check_enough(count, len(training))
    return [
        training[number]
        for number in draws("some examples", seed, 0).permutation(len(training))[:count].tolist()
    ]


def translation_task(tune: FinetuneConfig, run: FinetuneRunConfig) -> TrainingTask:
    """Pairs, with the tokenizer that the model has."""
    start = open_start(tune.model)
    model, tokenizer = start.model, start.tokenizer
    if not isinstance(model, Transformer | RNN):
        raise ValueError(
            f"model: {tune.model} is no encoder-decoder; a GPT learns to translate as a chat, from conversations"
        )
    if tune.examples is not None:
        raise ValueError("examples: translate trains on all pairs; give a smaller file")

    source = open_pairs(tune.data)
    pairs, sources = prepare_pairs(source, tokenizer), source.fingerprint()
    if tune.validation:
        held_out_source = open_pairs(tune.validation)
        training, validation = pairs, prepare_pairs(held_out_source, tokenizer)
        sources |= of_validation(held_out_source)
    else:
        training, validation = pairs.split(min(tune.held_out, MOST_HELD_OUT / max(1, len(pairs))))

    if tokenizer.start is None or tokenizer.end is None or tokenizer.padding is None:
        raise ValueError(
            "tokenizer: translation needs tokens for start, end and padding, and it lacks one"
        )

    marks = (tokenizer.start, tokenizer.end, tokenizer.padding)
    context = model.config.context if isinstance(model, Transformer) else None
    data, held_out = (
        PairedData(each, *marks, None, run.seed, context, rows=run.batch)
        for each in (training, validation)
    )
    notes = [f"{len(training):,} pairs to train on, {len(validation):,} to validate on"]
    if left_out := data.left_out + held_out.left_out:
        notes.append(f"{left_out:,} pairs are longer than the context, and are left out")

    fingerprint = fingerprint_of(start, sources, tokenizer)

    return language_task(
        tune, run, model, tokenizer, data, held_out, start, fingerprint, tuple(notes)
    )


def language_task(
    tune: FinetuneConfig,
    run: FinetuneRunConfig,
    model: GPT | Transformer | RNN,
    tokenizer: Tokenizer,
    data: Any,
    held_out: Any,
    start: Start,
    fingerprint: str,
    notes: tuple[str, ...],
) -> TrainingTask:
    """The same model, trained on."""
    if tune.metric not in (None, "loss"):
        raise ValueError(f"metric: {tune.task} is judged by its loss, not by {tune.metric}")

    config: Config = with_dropout(model.config, tune)
    if tune.scratch:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            begun: Model = build(config)
    else:
        begun = with_weights(config, model.state_dict())

    trained = freeze(begun, tune, says_words=True, seed=run.seed)

    return TrainingTask(
        config,
        tokenizer,
        data,
        held_out,
        fingerprint,
        notes=(*tune.unused(), *notes),
        trained=trained,
        learning=learning_in(begun),
        through=passed_through(tune, config.depth),
        begin=lambda: begun,
        save=partial(save_adapted, config, tune, tokenizer) if tune.adapters else None,
        steps=run.steps(data.steps_per_epoch),
        rate=rate_of(tune, config.width),
        warmup=USUAL_WARMUP,
        length=getattr(data, "length", None),
    )
