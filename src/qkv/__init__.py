"""Attention and Transformers: learn it, train it, look inside it, serve it, with one model object.

Text becomes token ids, ids become vectors, blocks of attention and feed-forward layers turn them
into logits, and the logits give the loss in training or the next token in generation:

    import qkv

    model, tokenizer = qkv.load("smollm2")              # a run, a folder of transformers, GGUF
    print(qkv.generate(model, tokenizer, "Once upon a time", length=40))
    qkv.look(model, "The quick brown fox", tokenizer=tokenizer).save("look.html")
    qkv.save(model, "my-model", tokenizer=tokenizer)    # config.json, model.safetensors
    qkv.serve({"mine": "my-model"})                     # an OpenAI-compatible API and a page

    output, weights = qkv.attend(query, key, value)     # the one equation behind it all
    qkv.train(config, data, optimizer, run)             # and how the weights are learned

The packages: nn (attention and layers), models, text (tokenizers), data, training, generation,
evaluation, insight, serving. `qkv --help` lists the commands.
"""

import os
from typing import TYPE_CHECKING

from qkv.version import __version__

# OpenMP (libgomp) reads this once, when torch is loaded. By default its threads spin for
# milliseconds while they wait for each other, and threads that spin on a core that another process
# wants make training many times slower. Few spins keep the speed on an idle and on a busy machine
# (benchmarks/training/openmp.py).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from qkv.api import generate
    from qkv.artifact import load, save
    from qkv.insight.look import look
    from qkv.nn.attention import attend
    from qkv.serving.serve import serve
    from qkv.training.train import train
else:
    from qkv.imports import attach

    attach(
        __name__,
        submodules=(
            "artifact",
            "data",
            "evaluation",
            "generation",
            "insight",
            "lab",
            "models",
            "nn",
            "serving",
            "text",
            "training",
        ),
    )

__all__ = [
    "__version__",
    "attend",
    "generate",
    "load",
    "look",
    "save",
    "serve",
    "train",
]
