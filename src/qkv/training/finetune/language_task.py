"""Fine-tuning without a head: a GPT on conversations (chat), an encoder-decoder on translations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from qkv.data.batches.chat import (
    Conversation,
    ConversationData,
    encode_conversations,
    open_conversations,
)
from qkv.data.batches.order import random_generator
from qkv.data.batches.paired import PairedData
from qkv.data.sources.source import open_pairs
from qkv.data.tokens.prepare import prepare_pairs
from qkv.data.tokens.token_arrays import Pairs
from qkv.models.gpt import GPT
from qkv.models.model import Model
from qkv.models.registry import Config, build, with_weights
from qkv.models.resize_vocabulary import with_vocabulary
from qkv.models.rnn import RNN
from qkv.models.transformer import Transformer
from qkv.text import Tokenizer
from qkv.training.finetune.adapter_export import save_adapted
from qkv.training.finetune.finetune_config import USUAL_WARMUP, FinetuneConfig, FinetuneRunConfig
from qkv.training.finetune.finetune_examples import (
    MOST_HELD_OUT,
    check_enough,
    split,
    validation_fingerprint,
)
from qkv.training.finetune.freeze import backward_fraction, count_trainable, freeze
from qkv.training.finetune.pretrained import (
    default_rate,
    length_multiple,
    open_pretrained,
    padding_id,
    task_fingerprint,
    with_dropout,
)
from qkv.training.setup.training_task import TrainingTask

LONGEST_CHAT = 1024
CHAT_MARKS = ("<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""For a tokenizer without a chat template: two new tokens around each message, as in ChatML."""


class LanguageData(NamedTuple):
    """Batches of conversations or pairs, and what identifies and describes them."""

    training: Any
    validation: Any
    fingerprint: str
    notes: list[str]


class Conversations(NamedTuple):
    training: list[Conversation]
    validation: list[Conversation]
    sources: dict[str, str]
    """Fingerprints of the files."""


def chat_task(tune: FinetuneConfig, run: FinetuneRunConfig) -> TrainingTask:
    """Conversations packed into rows without attending to each other; only answers have a loss."""
    conversations = read_conversations(tune, run.seed)
    pretrained = open_pretrained(tune.model)
    model = pretrained.model
    if not isinstance(model, GPT) or model.config.memory:
        raise ValueError(f"model: {tune.model} cannot chat; chat expects a GPT without memory")

    # A chat template, with new tokens if the tokenizer has none
    tokenizer = pretrained.tokenizer
    notes: list[str] = []
    if tokenizer.chat_template is None:
        model, tokenizer = add_chat_template(model, tokenizer, tune, run.seed)
        notes.append(
            "the tokenizer had no chat template: it now has a plain one, "
            f"and {' and '.join(CHAT_MARKS)}"
        )

    # Batches
    context = min(tune.context or LONGEST_CHAT, model.config.context)

    def batches(conversations: Sequence[Conversation]) -> ConversationData:
        return ConversationData(
            encode_conversations(tokenizer, conversations),
            context,
            run.batch,
            padding_id(tokenizer),
            run.seed,
            multiple=length_multiple(run.device),
        )

    training = batches(conversations.training)
    validation = batches(conversations.validation)
    notes.append(
        f"{len(conversations.training):,} conversations to train on, "
        f"{len(conversations.validation):,} to validate on"
    )
    cut = training.cut + validation.cut
    if cut:
        notes.append(f"{cut:,} conversations are longer than {context:,} tokens and are truncated")

    left_out = training.left_out + validation.left_out
    if left_out:
        notes.append(
            f"{left_out:,} conversations have no answer within {context:,} tokens, and are left out"
        )

    fingerprint = task_fingerprint(pretrained, conversations.sources, tokenizer)
    data = LanguageData(training, validation, fingerprint, notes)

    return language_task(tune, run, model, tokenizer, data)


def add_chat_template(
    model: GPT, tokenizer: Tokenizer, tune: FinetuneConfig, seed: int
) -> tuple[GPT, Tokenizer]:
    """Model and tokenizer with a plain chat template and its two new tokens."""
    if tune.train != "everything":
        raise ValueError(
            "train: the tokens of a chat are new to this model, so all of it must be trained; "
            "expected everything"
        )

    tokenizer = tokenizer.with_special_tokens(CHAT_MARKS, chat_template=CHAT_TEMPLATE)
    larger = with_vocabulary(model, max(model.config.vocabulary, tokenizer.vocabulary), seed)
    assert isinstance(larger, GPT)

    return larger, tokenizer


def read_conversations(tune: FinetuneConfig, seed: int) -> Conversations:
    """Read all conversations, hold some out, and choose those to train on."""
    source = open_conversations(tune.data)
    training = list(source)
    sources = source.fingerprint()
    if tune.validation:
        validation_source = open_conversations(tune.validation)
        validation = list(validation_source)
        sources = sources | validation_fingerprint(validation_source)
    else:
        training, validation = split(training, tune.held_out)

    return Conversations(choose(training, tune.examples, seed), validation, sources)


def choose(training: list[Conversation], count: int | None, seed: int) -> list[Conversation]:
    """This many conversations, chosen by the seed; all if `count` is None."""
    if count is None:
        return training

    check_enough(count, len(training))
    order = random_generator("some examples", seed, 0).permutation(len(training))
    return [training[index] for index in order[:count].tolist()]


def translation_task(tune: FinetuneConfig, run: FinetuneRunConfig) -> TrainingTask:
    """Pairs for an encoder-decoder, with the tokenizer that it has."""
    pretrained = open_pretrained(tune.model)
    model = pretrained.model
    tokenizer = pretrained.tokenizer
    if not isinstance(model, Transformer | RNN):
        raise ValueError(
            f"model: {tune.model} is no encoder-decoder; "
            "a GPT learns to translate as a chat, from conversations"
        )
    if tune.examples is not None:
        raise ValueError("examples: translate trains on all pairs; give a smaller file")

    # Tokenize, and set the validation data apart
    source = open_pairs(tune.data)
    pairs = prepare_pairs(source, tokenizer)
    sources = source.fingerprint()
    if tune.validation:
        validation_source = open_pairs(tune.validation)
        training = pairs
        validation = prepare_pairs(validation_source, tokenizer)
        sources = sources | validation_fingerprint(validation_source)
    else:
        training, validation = pairs.split(min(tune.held_out, MOST_HELD_OUT / max(1, len(pairs))))

    # Batches
    training_data = pair_batches(training, model, tokenizer, run)
    validation_data = pair_batches(validation, model, tokenizer, run)
    notes = [f"{len(training):,} pairs to train on, {len(validation):,} to validate on"]
    left_out = training_data.left_out + validation_data.left_out
    if left_out:
        notes.append(f"{left_out:,} pairs are longer than the context, and are left out")

    fingerprint = task_fingerprint(pretrained, sources, tokenizer)
    data = LanguageData(training_data, validation_data, fingerprint, notes)

    return language_task(tune, run, model, tokenizer, data)


def pair_batches(
    pairs: Pairs, model: Transformer | RNN, tokenizer: Tokenizer, run: FinetuneRunConfig
) -> PairedData:
    if tokenizer.start is None or tokenizer.end is None or tokenizer.padding is None:
        raise ValueError(
            "tokenizer: translation needs tokens for start, end and padding, and it lacks one"
        )

    context = None
    if isinstance(model, Transformer):
        context = model.config.context

    return PairedData(
        pairs,
        tokenizer.start,
        tokenizer.end,
        tokenizer.padding,
        None,
        run.seed,
        context,
        rows=run.batch,
    )


def language_task(
    tune: FinetuneConfig,
    run: FinetuneRunConfig,
    model: GPT | Transformer | RNN,
    tokenizer: Tokenizer,
    data: LanguageData,
) -> TrainingTask:
    """The training task that continues the training of a model."""
    if tune.metric not in (None, "loss"):
        raise ValueError(f"metric: {tune.task} is judged by its loss, not by {tune.metric}")

    config: Config = with_dropout(model.config, tune)
    initial: Model
    if tune.scratch:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            initial = build(config)
    else:
        initial = with_weights(config, model.state_dict())

    trained_fraction = freeze(initial, tune, language_loss=True, seed=run.seed)
    save = None
    if tune.adapters is not None:
        save = partial(save_adapted, config, tune, tokenizer)

    return TrainingTask(
        config,
        tokenizer,
        data.training,
        data.validation,
        data.fingerprint,
        notes=(*tune.unused(), *data.notes),
        trained_fraction=trained_fraction,
        trainable=count_trainable(initial),
        backward_fraction=backward_fraction(tune, config.depth),
        initial_model=lambda: initial,
        save=save,
        steps=run.steps(data.training.steps_per_epoch),
        learning_rate=default_rate(tune, config.width),
        warmup=USUAL_WARMUP,
        length=getattr(data.training, "length", None),
    )
