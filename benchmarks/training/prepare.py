"""Time and memory of preparing a text: qkv, and `tokenizers` alone on the same chunks.

64 MB of Python's standard library, or 1,000 MB, for which at most 600 MB of memory are promised:
    python -m benchmarks.training.prepare [--megabytes 1000]
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.harness import machine
from qkv.data.sources.source import open_texts
from qkv.data.tokens.encode import CHUNK, Chunk, batch_by_characters, split_chunks
from qkv.text.tokenizer_training import train

# Preparing runs in a process of its own, with torch loaded as in training, to measure its memory.
CHILD = """
import resource, sys, time
from pathlib import Path
import torch
from qkv.data.tokens.prepare import prepare_texts
from qkv.data.sources.source import open_texts
from qkv.text.tokenizer import Tokenizer

text, tokenizer, cache = sys.argv[1:]
tokenizer = Tokenizer.read(tokenizer)
tokenizer.encode("as warm as the peer")
unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
begin = time.perf_counter()
tokens = prepare_texts(open_texts([text]), tokenizer, cache=Path(cache), progress=False)
took = time.perf_counter() - begin
print(took, len(tokens), before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
"""


@dataclass
class Options:
    megabytes: int = 64
    """Size of the text."""
    vocabulary: int = 8192
    """Vocabulary of the byte-pair tokenizer, learned from the same library."""
    rounds: int = 1
    """Rounds in which each runs once; the fastest counts."""


def library() -> Iterator[str]:
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield file.read_text(encoding="utf-8", errors="ignore")


def write_text(file: Path, size: int) -> None:
    library_bytes = "".join(library()).encode()
    with file.open("wb") as out:
        for _ in range(size // len(library_bytes)):
            out.write(library_bytes)
        rest = library_bytes[: size % len(library_bytes)]
        out.write(rest[: rest.rfind(b"\n") + 1])


def bare(text: Path, encode: Callable[..., object]) -> float:
    """Seconds inside the library, without reading the file and without using the result."""
    seconds = 0.0
    for _, batch in batch_by_characters(split_chunks(open_texts([str(text)]), CHUNK), Chunk.size):
        texts = [chunk.text for chunk in batch]
        begin = time.perf_counter()
        encode(texts, add_special_tokens=False)
        seconds += time.perf_counter() - begin
    return seconds


def ours(text: Path, tokenizer: Path, cache: Path) -> list[float]:
    """Seconds from file to shards, tokens, and bytes of memory before and at the peak."""
    command = [sys.executable, "-c", CHILD, str(text), str(tokenizer), str(cache)]
    child = subprocess.run(command, check=True, capture_output=True, text=True)
    return list(map(float, child.stdout.split()))


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "library.txt"
        write_text(text, options.megabytes * 1_000_000)
        tokenizer = train("byte-pair", library(), options.vocabulary)
        tokenizer.write(folder / "tokenizer.json")
        peers = {
            "encode_batch": tokenizer.inner.encode_batch,
            "encode_batch_fast": tokenizer.inner.encode_batch_fast,
        }
        prepared = []
        seconds = dict.fromkeys(peers, float("inf"))
        for round_ in range(options.rounds):
            prepared.append(ours(text, folder / "tokenizer.json", folder / f"cache-{round_}"))
            for name, encode in peers.items():
                seconds[name] = min(seconds[name], bare(text, encode))

        took, tokens, before, most = min(prepared)
        size = text.stat().st_size / 1e6
        print(f"preparing {size:,.0f} MB, {tokens / 1e6:,.1f} million tokens; {machine()}")
        print(f"  {'qkv, from file to shards':36} {size / took:8.2f} MB/s")
        for name, best in seconds.items():
            print(
                f"  tokenizers, {name + ' alone':24} {size / best:8.2f} MB/s   "
                f"qkv is x {best / took:.2f}"
            )
        print(
            f"  memory of qkv: {most / 1e6:,.0f} MB at the peak, "
            f"{before / 1e6:,.0f} MB of it before preparing"
        )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
