"""Translation with beam search: qkv, `transformers` and CTranslate2 with the same Marian weights.

    python -m benchmarks.decoding.translate             on the CPU; --threads 1 for one core

The model has the size of the opus-mt translators and random weights, except for its end token: a
linear fit makes an end likely after about as many tokens as the source has, so that sentences end
at different steps, as real ones do. They come in no order; qkv and CTranslate2 batch those of
similar length, and `transformers` is measured as it is and with sorted sentences. Each peer has the
batch size that is fastest for it. `transformers` must find the same translations, because its
stopping rule is the same (early_stopping = never); CTranslate2 has a different rule, so the equal
translations are counted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

from benchmarks.harness import Table, compare
from qkv.generation.search.beam_search import beam_search
from qkv.models import Transformer, TransformerConfig
from qkv.models.convert import read_folder, write_folder

VOCABULARY, END = 58101, 0
PAD = VOCABULARY - 1  # also the start, as in opus-mt: its embedding is zeros
BEAMS, LENGTH_PENALTY = 4, 0.6


@dataclass
class Options:
    sentences: int = 32
    longest: int = 40
    """Tokens of the longest source; the shortest has 5."""
    length: int = 64
    """Tokens of a translation at most."""
    batches: tuple[int, ...] = (4, 8, 16, 32)
    """Sentences at a time; each peer's best is taken."""
    threads: int = 2
    rounds: int = 3
    """Each peer runs once a round, in turn; the median of the rounds counts."""


Translate = Callable[[list[list[int]], int], list[list[int]]]
"""The best translation of each source, from the sources and a batch size."""


def random_translator(longest: int) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(
        vocabulary=VOCABULARY, context=512, width=512, depth=6, heads=8, hidden=2048,
        activation="silu", sinusoid="halves", logit_bias=True, scaled_embedding=False,
    )  # fmt: skip
    model = Transformer(config).eval()
    with torch.no_grad():
        table, bias = model.embedding.token.weight, model.logit_bias
        assert bias is not None
        table *= 3  # as sure of its tokens as a trained model
        table[PAD] = 0
        bias[PAD] = -100  # never generated, even if a library does not forbid it
        learn_to_end(model, longest)
    return model


def learn_to_end(model: Transformer, longest: int, sure: float = 2.0) -> None:
    """Set the end's row of the output layer: its logit is highest after the source's length."""
    hidden, left, top = [], [], []
    for size in range(5, longest + 1):
        source, target = (torch.randint(1, PAD, (4, n)) for n in (size, longest + 10))
        shifted = torch.cat([torch.full((4, 1), PAD), target], 1)
        translations = model.hidden(source, shifted)  # (4, T, E)
        hidden.append(translations.flatten(0, 1))
        left.append((torch.arange(translations.shape[1]) - size).repeat(4).float())
        top.append(model.logits(translations[:, -1]).amax(-1))
    x, past = torch.cat(hidden), torch.cat(left)
    x = torch.cat([x, torch.ones(len(x), 1)], dim=1)  # (N, E + 1)
    fit = torch.linalg.solve(x.T @ x + 10 * torch.eye(x.shape[1]), x.T @ past)  # (E + 1,)
    model.embedding.token.weight[END] = sure * fit[:-1]
    assert model.logit_bias is not None
    model.logit_bias[END] = sure * fit[-1] + torch.cat(top).mean()


def ours(folder: Path, options: Options) -> Translate:
    model = read_folder(folder)

    def translate(sources: list[list[int]], batch: int) -> list[list[int]]:
        translations = beam_search(
            model, sources, start=PAD, end=END, length=options.length, beams=BEAMS,
            length_penalty=LENGTH_PENALTY, penalty="power", batch=batch,
        )  # fmt: skip
        return [row[0].ids for row in translations]

    return translate


def transformers_peer(folder: Path, options: Options) -> Translate:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.MarianMTModel.from_pretrained(folder).eval()

    def translate(sources: list[list[int]], batch: int) -> list[list[int]]:
        translations: list[list[int]] = []
        for at in range(0, len(sources), batch):
            rows = [torch.tensor(row) for row in sources[at : at + batch]]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
            with torch.inference_mode():
                generated = model.generate(
                    ids, attention_mask=(ids != PAD).long(), num_beams=BEAMS,
                    max_new_tokens=options.length, length_penalty=LENGTH_PENALTY,
                    early_stopping="never", do_sample=False, forced_eos_token_id=None,
                )  # fmt: skip
            translations += [
                [id for id in row if id not in (PAD, END)] for row in generated.tolist()
            ]
        return translations

    return translate


def sorted_first(translate: Translate) -> Translate:
    def in_order(sources: list[list[int]], batch: int) -> list[list[int]]:
        order = sorted(range(len(sources)), key=lambda at: len(sources[at]))
        translations = dict(
            zip(order, translate([sources[at] for at in order], batch), strict=True)
        )
        return [translations[at] for at in range(len(sources))]

    return in_order


def ctranslate2_peer(folder: Path, options: Options) -> Translate:
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    class MadeUpTokenizer:
        eos_token, unk_token = str(END), "1"

        def get_vocab(self) -> dict[str, int]:
            return {str(id): id for id in range(PAD)} | {"<pad>": PAD}

    class Converter(TransformersConverter):
        def load_tokenizer(self, *_: Any, **__: Any) -> Any:
            return MadeUpTokenizer()

    converted = Converter(str(folder)).convert(str(folder / "ctranslate2"))
    model = ctranslate2.Translator(
        converted, compute_type="float32", inter_threads=1, intra_threads=options.threads
    )

    def translate(sources: list[list[int]], batch: int) -> list[list[int]]:
        translations = model.translate_batch(
            [[str(id) for id in row] for row in sources], beam_size=BEAMS,
            length_penalty=LENGTH_PENALTY, max_decoding_length=options.length,
            max_batch_size=batch,
        )  # fmt: skip
        return [[int(token) for token in result.hypotheses[0]] for result in translations]

    return translate


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as converted:
        folder = Path(converted)
        write_folder(
            random_translator(options.longest), folder, begin_id=PAD, end_id=END, pad_id=PAD
        )
        theirs = transformers_peer(folder, options)
        translators = {
            "qkv": ours(folder, options),
            "transformers": theirs,
            "transformers, sorted": sorted_first(theirs),
            "CTranslate2": ctranslate2_peer(folder, options),
        }
        sizes = torch.randint(5, options.longest + 1, (options.sentences,)).tolist()
        sources = [torch.randint(1, PAD, (size,)).tolist() for size in sizes]
        best = {
            name: best_batch(name, translate, sources, options)
            for name, translate in translators.items()
        }
        translations = {
            name: translate(sources, best[name]) for name, translate in translators.items()
        }
        report(sources, translations)
        runs = {
            f"{name}, {best[name]} at a time": lambda name=name: translators[name](
                sources, best[name]
            )
            for name in translators
        }
        tokens = sum(map(len, translations["qkv"])) + len(sources)
        table = Table(
            f"{len(sources)} sentences, {tokens} tokens with their ends, beam {BEAMS}, float32, CPU"
        )
        table.add(f"{options.threads} threads", compare(runs, options.rounds, "cpu"))
        table.print()


def best_batch(name: str, translate: Translate, sources: list[list[int]], options: Options) -> int:
    seconds = {}
    for batch in options.batches:
        translate(sources[:batch], batch)
        begin = time.perf_counter()
        translate(sources, batch)
        seconds[batch] = time.perf_counter() - begin
    print(
        name,
        ", ".join(f"{batch} at a time {took:.2f} s" for batch, took in seconds.items()),
        flush=True,
    )
    return min(seconds, key=lambda batch: seconds[batch])


def report(sources: list[list[int]], translations: dict[str, list[list[int]]]) -> None:
    lengths = [len(row) for row in translations["qkv"]]
    sizes = [len(row) for row in sources]
    print(
        f"sources of {min(sizes)} to {max(sizes)} tokens, "
        f"translations of {min(lengths)} to {max(lengths)}"
    )
    for name, rows in translations.items():
        same = sum(mine == yours for mine, yours in zip(translations["qkv"], rows, strict=True))
        print(
            f"{name}: {same} of {len(rows)} translations as ours, {sum(map(len, rows))} tokens",
            flush=True,
        )
    assert translations["transformers"] == translations["qkv"]


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
