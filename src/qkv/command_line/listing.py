"""The commands and their summaries, for `qkv --help`; imports nothing but the standard library."""

from __future__ import annotations

import shutil
import textwrap
from typing import NamedTuple


class Command(NamedTuple):
    """A command: its summary and the function that runs it."""

    summary: str
    target: str
    """The function, as module:name in qkv.commands."""
    reads_arguments: bool = False
    """Whether the function parses the command line itself; it returns False if interrupted."""


COMMANDS: dict[str, Command] = {
    "train": Command(
        "Train a model on your text: qkv train gpt --data my.txt --out runs/mine", "train:run", True
    ),
    "finetune": Command(
        "Fine-tune a pre-trained model on a task: "
        "qkv finetune minilm --task classify --data train.tsv --out runs/mine",
        "finetune:main",
        True,
    ),
    "generate": Command(
        "Continue a prompt with a GPT: qkv generate runs/mine 'Once upon a time'",
        "generate:Generate",
    ),
    "chat": Command("Chat with a model that has a chat template: qkv chat smollm2", "chat:Chat"),
    "translate": Command(
        "Translate lines of a file, of a pipe, or as you type them: qkv translate runs/translator",
        "translate:Translate",
    ),
    "fill": Command(
        "Predict masked words with a BERT: qkv fill runs/encoder 'I took my [mask] for a walk'",
        "fill:run",
    ),
    "classify": Command(
        "Classify texts with a fine-tuned model: qkv classify runs/sst-2 'a film to remember'",
        "classify:classify",
    ),
    "tag": Command(
        "Tag the words of sentences with a fine-tuned model: qkv tag runs/tagger 'The cat sat'",
        "classify:tag",
    ),
    "evaluate": Command(
        "Score models on tasks: qkv evaluate smollm2 --task lambada --data lambada.jsonl",
        "evaluate:Evaluate",
    ),
    "compare": Command(
        "Compare prompting with fine-tuning: "
        "qkv compare smollm2 --task sst-2 --data a.tsv --validation b.tsv --out both",
        "compare:Compare",
    ),
    "look": Command(
        "See attention and predictions while a model reads: "
        "qkv look smollm2 'The quick brown fox' --out look.html",
        "look:run",
    ),
    "heads": Command(
        "What each head does, which ones matter, which follow syntax: "
        "qkv heads smollm2 --ablate mean",
        "heads:run",
    ),
    "edit": Command(
        "Change attention and see the output change: "
        "qkv edit smollm2 'Once upon a' --change 3.5=off",
        "edit:run",
    ),
    "patch": Command(
        "Patch activations of one prompt into another: "
        "qkv patch smollm2 'in France' 'in Italy' --answer ' Paris'",
        "patch:run",
    ),
    "probe": Command(
        "Train probes on every layer of a frozen model: "
        "qkv probe minilm --target train.conllu:upos",
        "probe:run",
    ),
    "serve": Command(
        "Serve models with an OpenAI-compatible API and a playground page: qkv serve smollm2",
        "serve:run",
    ),
    "lab": Command(
        "What the lectures show, each as one command: "
        "qkv lab cats, qkv lab mask, qkv lab positions",
        "lab:run",
        True,
    ),
    "plot": Command("Draw the curves of one or many runs to a PNG: qkv plot runs/mine", "plot:run"),
    "demo": Command(
        "Train the lecture's translator and a small GPT in two minutes, and look at what they do.",
        "demo:run",
    ),
    "presets": Command(
        "List the models that can be built by name, with their sizes.", "presets:run"
    ),
    "doctor": Command(
        "Show what this machine has, what is slow on it and what to do about it.", "doctor:run"
    ),
    "completion": Command(
        "Print a completion script for your shell: source <(qkv completion bash)",
        "completion:run",
        True,
    ),
    "help": Command("Explain a command, as its --help does: qkv help train gpt", ""),
}


def listed(name: str, summary: str) -> str:
    """A command and its summary, wrapped to the terminal's width or 100 columns."""
    width = min(100, shutil.get_terminal_size().columns)
    lines = textwrap.wrap(
        " ".join(summary.split()), width - 15, break_on_hyphens=False, break_long_words=False
    )
    first, *rest = lines or [""]

    return "\n".join([f"  {name:12} {first}", *(f"  {'':12} {line}" for line in rest)])
