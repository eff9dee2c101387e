"""qkv sae: a sparse autoencoder on one layer, and the texts of its features."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.text import Text

from qkv import storage
from qkv.command_line.model_opening import DEFAULT_MACHINE, Machine, ModelName, open_float32
from qkv.command_line.output_checks import check_writable
from qkv.command_line.terminal_bars import progress_bar
from qkv.command_line.user_input import note_unknown
from qkv.commands.heads import passages
from qkv.insight.dictionary.dictionary_training import TrainedDictionary, train_dictionary
from qkv.insight.dictionary.feature_texts import Feature, feature_texts
from qkv.insight.dictionary.sparse_autoencoder import Sparsity
from qkv.insight.dictionary.token_rows import token_rows, token_vectors
from qkv.insight.inspect.model_input import leading_spaces, readable_token
from qkv.insight.render.feature_page import feature_page, feature_table, measures_line

WEIGHTS = "autoencoder.safetensors"
FEATURES = "features.json"
PAGE = "index.html"


@dataclass(frozen=True, kw_only=True)
class SparseFeatures:
    """Train a sparse autoencoder on the residual stream after one layer.

    qkv sae smollm2 --layer 12 --data book.txt --out features

    The folder gets the weights, all features with their strongest texts as JSON, and a page that
    shows them.
    """

    model: ModelName
    """The folder of a run or of transformers, a GGUF file, or smollm2 or minilm."""
    layer: int
    """The layer, from 0."""
    data: tuple[str, ...]
    """Files with texts."""
    out: Path
    """The folder for weights, JSON and page."""
    features: int | None = None
    """The number of features (default: 8 times the width of the model)."""
    sparsity: Sparsity = "top-k"
    """top-k keeps the most active features of each token; relu penalises the sum of all."""
    active: int = 16
    """With top-k: active features of each token."""
    penalty: float = 0.1
    """With relu: the factor of the sum of activities in the loss."""
    steps: int = 1000
    """Training steps of 256 tokens."""
    limit: int = 500
    """Passages of the data that are read."""
    texts: int = 5
    """Texts of each feature."""
    top: int = 15
    """Features that are listed in the terminal; the page has all."""
    seed: int = 0
    """For the initial weights and the order of the tokens; the same seed gives the same result."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one line of JSON with the measures, instead of a table."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision of the model that is read."""

    def run(self) -> None:
        check_writable("out", self.out / PAGE)
        for flag in ("limit", "texts", "top"):
            if getattr(self, flag) < 1:
                raise ValueError(f"{flag}: expected 1 or more, not {getattr(self, flag)}")

        model, tokenizer = open_float32(self.model, self.machine)
        texts = list(islice(passages(self.data), self.limit))
        note_unknown(tokenizer, texts)
        rows = token_rows(model, tokenizer, texts)
        with Console(stderr=True).status(Text("reading the texts ...")):
            found = token_vectors(model, tokenizer, rows, self.layer)

        with progress_bar("training") as advance:
            trained = train_dictionary(
                found.vectors,
                layer=self.layer,
                features=self.features,
                sparsity=self.sparsity,
                active=self.active,
                penalty=self.penalty,
                steps=self.steps,
                seed=self.seed,
                advance=advance,
            )

        features = feature_texts(trained.autoencoder, found, rows, self.texts)

        def name(id: int) -> str:
            return readable_token(tokenizer, id)

        # Results
        title = f"Features of {Path(self.model).name}, layer {self.layer}"
        spaces = leading_spaces(tokenizer, {id for row in rows for id in row})
        page = feature_page(features, trained.measures, title, name, spaces)
        numbers = self.measures_object(trained, len(found.places))
        listed = [feature_object(feature, name) for feature in features]
        content = json.dumps({**numbers, "list": listed}, ensure_ascii=False)
        trained.autoencoder.save(self.out / WEIGHTS)
        storage.write_text(self.out / FEATURES, content)
        storage.write_text(self.out / PAGE, page)
        if self.as_json:
            print(json.dumps(numbers, ensure_ascii=False))
            return

        console = Console(highlight=False)
        console.print(feature_table(features, name, self.top))
        console.print(Text(f"{len(found.places):,} tokens; {measures_line(trained.measures)}"))
        print(self.out / PAGE)

    def measures_object(self, trained: TrainedDictionary, tokens: int) -> dict[str, Any]:
        """Settings and measures for JSON."""
        measures = trained.measures
        return {
            "model": self.model,
            **trained.autoencoder.config._asdict(),
            "tokens": tokens,
            "variance_explained": measures.variance_explained,
            "active_features": measures.active,
            "dead": measures.dead,
            "loss": measures.losses[-1],
        }


def feature_object(feature: Feature, name: Any) -> dict[str, Any]:
    """A feature with its texts for JSON."""
    texts = []
    for text in feature.texts:
        tokens = [name(id) for id in text.ids]
        activity = [round(value, 4) for value in text.activity]
        texts.append({"tokens": tokens, "activity": activity, "at": text.at})

    return {
        "feature": feature.number,
        "frequency": feature.frequency,
        "largest": feature.largest,
        "texts": texts,
    }
