"""The commands, and how lists show them. Needs nothing but Python, so that `qkv --help` starts at
once.
"""

from __future__ import annotations

import shutil
import textwrap
from typing import NamedTuple


class Command(NamedTuple):
    summary: str
    target: str
    """The function, as module:name in qkv.commands."""
    reads_arguments: bool = False
    """Whether the function reads the command line itself, and tells by False that it was
    interrupted.
    """


COMMANDS: dict[str, Command] = {
    "train": Command(
        "Train a model on your text: qkv train gpt --data my.txt --out runs/mine", "train:run", True
    ),
    "finetune": Command(
        "Teach a pre-trained model a task: qkv finetune minilm --task classify --data train.tsv --out runs/mine",
        "finetune:main",
        True,
    ),
    "generate": Command(
        "Let a GPT go on from a prompt: qkv generate runs/mine 'Once upon a time'", "generate:run"
    ),
    "chat": Command("Talk with a model that was taught to: qkv chat smollm2", "chat:run"),
    "translate": Command(
        "Translate lines of a file, of a pipe, or as you type them: qkv translate runs/translator",
        "translate:run",
    ),
    "fill": Command(
        "Guess masked words with a BERT: qkv fill runs/encoder 'I took my [mask] for a walk'",
        "fill:run",
    ),
    "classify": Command(
        "Ask a fine-tuned model about texts: qkv classify runs/sst-2 'a film to remember'",
        "classify:classify",
    ),
    "tag": Command(
        "Tag the words of sentences with a fine-tuned model: qkv tag runs/tagger 'The cat sat'",
        "classify:tag",
    ),
    "evaluate": Command(
        "Score models in tasks: qkv evaluate smollm2 --task lambada --data lambada.jsonl",
        "evaluate:run",
    ),
    "compare": Command(
        "Prompting against fine-tuning: qkv compare smollm2 --task sst-2 --data a.tsv --validation b.tsv --out both",
        "compare:run",
    ),
    "look": Command(
        "See inside while a model reads: qkv look smollm2 'The quick brown fox' --out look.html",
        "look:run",
    ),
    "heads": Command(
        "What each head does, which ones matter, which know grammar: qkv heads smollm2 --ablate mean",
        "heads:run",
    ),
    "edit": Command(
        "Change attention and see the output change: qkv edit smollm2 'Once upon a' --change 3.5=off",
        "edit:run",
    ),
    "patch": Command(
        "Put activations of one prompt into another: qkv patch smollm2 'in France' 'in Italy' --answer ' Paris'",
        "patch:run",
    ),
    "probe": Command(
        "Ask every layer what it knows: qkv probe minilm --target train.conllu:upos", "probe:run"
    ),
    "serve": Command(
        "Serve models to OpenAI's clients, and a page to play with them: qkv serve smollm2",
        "serve:run",
    ),
    "lab": Command(
        "What the lectures show, each as one command: qkv lab cats, qkv lab mask, qkv lab positions",
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
        "Print a script for your shell: source <(qkv completion bash)", "completion:run", True
    ),
    "help": Command("Explain a command, as its --help does: qkv help train gpt", ""),
}


def listed(name: str, summary: str) -> str:
    """In the width of the terminal, at most 100 columns."""
    width = min(100, shutil.get_terminal_size().columns)
    lines = textwrap.wrap(
        " ".join(summary.split()), width - 15, break_on_hyphens=False, break_long_words=False
    )
    return "\n".join(
        f"  {name if number == 0 else '':12} {line}" for number, line in enumerate(lines)
    )
