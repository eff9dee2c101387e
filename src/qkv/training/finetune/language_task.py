"""Fine-tuning without a head: a GPT on conversations (chat), an encoder-decoder on translations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.data.batches.chat import (
    Conversation,
    ConversationData,
    encode_conversations,
    open_conversations,
)
from qkv.data.batches.order import random_generator
from qkv.data.sources.source import open_pairs
from qkv.models.registry import Config, with_weights
from qkv.training.finetune.finetune_config import FinetuneConfig, FinetuneRunConfig
from qkv.training.finetune.finetune_examples import Examples, check_enough, open_data, split
from qkv.training.finetune.tuned_task import (
    Pretrained,
    length_multiple,
    open_pretrained,
    padding_id,
    seeded_model,
    tuned_task,
    with_dropout,
)
from qkv.training.setup.training_task import TrainingTask, read_pairs, sizes_note

LONGEST_CHAT = 1024
CHAT_MARKS = ("<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""For a tokenizer without a chat template: two new tokens around each message, as in ChatML."""


def chat_task(tune: FinetuneConfig, run: FinetuneRunConfig) -> TrainingTask:
    """Conversations packed into rows without attending to each other; only answers have a loss."""
    conversations = read_conversations(tune, run.seed)
    pretrained = open_pretrained(tune.model)
    model = pretrained.model
    if model.predicts != "next" or not model.uses_kv_cache:
        raise ValueError(f"model: {tune.model} cannot chat; chat expects a GPT without memory")

    notes: list[str] = []
    if pretrained.tokenizer.chat_template is None:
        pretrained = with_chat_template(pretrained, tune, run)
        notes.append(
            "the tokenizer had no chat template: it now has a plain one, "
            f"and {' and '.join(CHAT_MARKS)}"
        )

    # Batches
    tokenizer = pretrained.tokenizer
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
    notes.append(sizes_note(conversations.training, conversations.validation, "conversations"))
    notes += length_notes(training, validation)
    data = (training, validation)

    return language_task(tune, run, pretrained, data, conversations.sources, notes)


def with_chat_template(
    pretrained: Pretrained, tune: FinetuneConfig, run: FinetuneRunConfig
) -> Pretrained:
    """The model and its tokenizer with a chat template, whose tokens are new."""
    if tune.train != "everything":
        raise ValueError(
            "train: the tokens of a chat are new to this model, so all of it must be trained; "
            "expected everything"
        )

    return pretrained.with_special_tokens(CHAT_MARKS, run.seed, chat_template=CHAT_TEMPLATE)


def length_notes(training: ConversationData, validation: ConversationData) -> list[str]:
    """What is said about conversations that are longer than the context."""
    notes: list[str] = []
    context = training.context
    cut = training.cut + validation.cut
    if cut:
        notes.append(f"{cut:,} conversations are longer than {context:,} tokens and are truncated")

    left_out = training.left_out + validation.left_out
    if left_out:
        notes.append(
            f"{left_out:,} conversations have no answer within {context:,} tokens, and are left out"
        )

    return notes


def read_conversations(tune: FinetuneConfig, seed: int) -> Examples:
    """Read all conversations, hold some out, and choose those to train on."""
    source, named, sources = open_data(tune, open_conversations)
    training = list(source)
    validation = list(named or ())
    if not tune.validation:
        training, validation = split(training, tune.held_out)

    if tune.examples is not None:
        check_enough(tune.examples, len(training))
        order = random_generator("some examples", seed, 0).permutation(len(training))
        training = [training[index] for index in order[: tune.examples].tolist()]

    return Examples(training, validation, sources)


def translation_task(tune: FinetuneConfig, run: FinetuneRunConfig) -> TrainingTask:
    """Pairs for an encoder-decoder, with the tokenizer that it has."""
    pretrained = open_pretrained(tune.model)
    model = pretrained.model
    if not model.has_source:
        raise ValueError(
            f"model: {tune.model} is no encoder-decoder; "
            "a GPT learns to translate as a chat, from conversations"
        )
    if tune.examples is not None:
        raise ValueError("examples: translate trains on all pairs; give a smaller file")

    source, validation, sources = open_data(tune, open_pairs)
    context = getattr(model.config, "context", None)
    options = {"rows": run.batch, "seed": run.seed, "context": context}
    training, validating, left_out = read_pairs(
        source, validation, pretrained.tokenizer, tune.held_out, **options
    )
    notes = [sizes_note(training.pairs, validating.pairs, "pairs"), *left_out]

    return language_task(tune, run, pretrained, (training, validating), sources, notes)


def language_task(
    tune: FinetuneConfig,
    run: FinetuneRunConfig,
    pretrained: Pretrained,
    data: tuple[Any, Any],
    sources: dict[str, str],
    notes: list[str],
) -> TrainingTask:
    """The training task that continues the training of a model."""
    config: Config = with_dropout(pretrained.model.config, tune)
    if tune.scratch:
        model = seeded_model(config, run.seed)
    else:
        model = with_weights(config, pretrained.model.state_dict())

    start = pretrained._replace(model=model)
    length = getattr(data[0], "length", None)
    return tuned_task(tune, run, start, data, sources, notes, length=length)
