"""Preparing: exactly the ids of the texts, tokenised once, and never from incomplete files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.sources.source import TextSource, open_pairs, open_texts
from qkv.data.tokens import encode, prepare, shards
from qkv.data.tokens.prepare import cache_folder, prepare_pairs, prepare_texts
from qkv.data.tokens.token_arrays import Tokens
from qkv.storage import DiskFull
from qkv.text.tokenizer import Tokenizer
from qkv.text.tokenizer_training import Kind, train
from support.made_data import make_texts

POEM = """The cat, the mouse\nand the  dog:
\n    all of them\n\n\n  chase.\tCats chase mice;\nmice run!\n çok güzel\nkedi 1234567\n"""

# only some line ends are borders between tokens here
AIRY = "one line\n\nanother\n\n\n  indented\n\nand so on\n"


@pytest.fixture(scope="module")
def byte_pairs() -> Tokenizer:
    return train("byte-pair", [POEM], 300)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, batches and shards so small that a short text has many."""
    monkeypatch.setattr(prepare, "CHUNK", 20)
    monkeypatch.setattr(encode, "BATCH", 100)
    monkeypatch.setattr(shards, "SHARD", 64)


def texts_in(tmp_path: Path, *texts: str) -> TextSource:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return open_texts([str(file)])


def file_in(tmp_path: Path, text: str) -> TextSource:
    file = tmp_path / "my.txt"
    file.write_text(text, encoding="utf-8", newline="")
    return open_texts([str(file)])


def everything(tokens: Tokens) -> list[int]:
    return tokens.read(0, len(tokens)).tolist()


def folders(cache: Path) -> list[str]:
    return sorted(
        path.name for parent in cache.iterdir() for path in parent.iterdir() if path.is_dir()
    )


# Written ids


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["byte-pair", "word-piece", "words", "characters"])
@pytest.mark.parametrize("part", [POEM, AIRY], ids=["poem", "airy"])
def test_a_long_text_has_the_ids_of_the_whole(kind: Kind, part: str, tmp_path: Path) -> None:
    text = part * 20
    tokenizer = train(kind, [text], 300)
    tokens = prepare_texts(file_in(tmp_path, text), tokenizer, cache=tmp_path / "cache")
    assert everything(tokens) == [*tokenizer.encode(text), tokenizer.end]
    assert tokens.ends.tolist() == [len(tokens)]
    assert len(tokens.shards) > 1


@pytest.mark.usefixtures("small")
def test_a_tokenizer_that_marks_the_first_word_of_a_text_gets_it_whole(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.train_from_iterator([POEM], tokenizers.trainers.BpeTrainer(vocab_size=80))
    tokenizer = Tokenizer(inner)
    assert not encode.separable(tokenizer)
    tokens = prepare_texts(file_in(tmp_path, POEM * 20), tokenizer, cache=tmp_path / "cache")
    assert everything(tokens) == tokenizer.encode(POEM * 20)  # and it has no end token


@pytest.mark.usefixtures("small")
def test_every_text_ends_with_the_end_token(tmp_path: Path, byte_pairs: Tokenizer) -> None:
    texts = [POEM[i : i + 3 + 7 * i] for i in range(40)]
    tokens = prepare_texts(texts_in(tmp_path, *texts), byte_pairs, cache=tmp_path / "cache")
    encoded = [[*byte_pairs.encode(text), byte_pairs.end] for text in texts]
    assert everything(tokens) == [id for text in encoded for id in text]
    assert tokens.ends.tolist() == np.cumsum([len(text) for text in encoded]).tolist()


def test_ids_are_two_bytes_while_they_fit(tmp_path: Path) -> None:
    for vocabulary, size in ((1 << 16, 2), ((1 << 16) + 1, 4)):
        ids = np.array([0, 7, vocabulary - 1])
        folder = tmp_path / str(size)
        folder.mkdir()
        with closing(shards.ShardedIdsWriter(folder, "texts", vocabulary)) as writer:
            writer.write(ids, np.array([3]))
            shards.write_manifest(folder, "key", {}, {"texts": writer.finish()})
        (tokens,) = shards.open_all_ids(folder, "key", ["texts"])
        assert tokens.read(0, 3).tolist() == ids.tolist()
        assert isinstance(tokens.shards[0], np.memmap)
        assert tokens.shards[0].itemsize == size


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=10),
    shard=st.integers(1, 20),
    data=st.data(),
)
def test_reads_cross_the_borders_of_shards_and_splits(
    lengths: list[int], shard: int, data: st.DataObject
) -> None:
    ids = list(range(sum(lengths)))
    ends = np.cumsum(lengths).tolist()
    texts = [ids[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    tokens = make_texts(texts, shard=shard)
    parts = [(tokens, ids, 0)]
    if len(ids) > 1:
        train_part, validation = tokens.split(0.5)
        assert len(train_part) + len(validation) == len(ids)
        middle = len(train_part)
        parts += [(train_part, ids[:middle], 0), (validation, ids[middle:], middle)]
    for part, expected, begin in parts:
        start, stop = sorted(
            data.draw(st.lists(st.integers(0, len(expected)), min_size=2, max_size=2))
        )
        assert part.read(start, stop).tolist() == expected[start:stop]
        assert part.ends.tolist() == [
            end - begin for end in ends if begin < end <= begin + len(expected)
        ]
        with pytest.raises(IndexError):
            part.read(0, len(expected) + 1)


def test_pairs_come_back(
    tmp_path: Path, byte_pairs: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "BATCH", 100)
    texts = [
        (f"cats chase {i} mice", "kediler " + "fareleri " * (i % 4) + f"kovalar {i}")
        for i in range(50)
    ]
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in texts), encoding="utf-8")
    pairs = prepare_pairs(open_pairs([str(file)]), byte_pairs, cache=tmp_path / "cache")
    assert len(pairs) == 50
    for i, (source, target) in enumerate(texts):
        assert pairs.source(i).tolist() == byte_pairs.encode(source)
        assert pairs.target(i).tolist() == byte_pairs.encode(target)
        assert (pairs.source_lengths[i], pairs.target_lengths[i]) == (
            len(pairs.source(i)),
            len(pairs.target(i)),
        )


def test_few_batches_wait_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of batches read and not yet returned is bounded."""
    monkeypatch.setattr(encode, "BATCH", 10)
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for _ in range(500):
            read += 1
            yield "cats "

    returned = 0
    for characters, done in encode.in_order("".join, encode.batch_by_characters(texts(), len)):
        returned += 1
        assert characters == len(done) == 10
        assert read <= 2 * (returned + encode.AT_ONCE + 1)
    assert returned == 250


# Once


def test_a_second_time_nothing_is_encoded(
    tmp_path: Path, byte_pairs: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = file_in(tmp_path, POEM)
    first = prepare_texts(source, byte_pairs, cache=tmp_path / "cache")
    monkeypatch.setattr(prepare, "in_order", lambda *_: pytest.fail("encoded again"))
    again = prepare_texts(
        open_texts([str(tmp_path / "my.txt")]), byte_pairs, cache=tmp_path / "cache"
    )
    assert everything(again) == everything(first)
    assert again.fingerprint == first.fingerprint


def test_another_text_or_tokenizer_is_noticed(tmp_path: Path, byte_pairs: Tokenizer) -> None:
    cache = tmp_path / "cache"
    first = prepare_texts(file_in(tmp_path, POEM), byte_pairs, cache=cache)
    changed = POEM.replace("cat", "dog")  # as long as before
    second = prepare_texts(file_in(tmp_path, changed), byte_pairs, cache=cache)
    assert everything(second) == [*byte_pairs.encode(changed), byte_pairs.end]
    characters = train("characters", [POEM], 300)
    third = prepare_texts(file_in(tmp_path, changed), characters, cache=cache)
    assert everything(third) == [*characters.encode(changed), characters.end]
    assert len({first.fingerprint, second.fingerprint, third.fingerprint}) == 3


def test_the_cache_is_where_the_user_says(
    tmp_path: Path, byte_pairs: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QKV_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path.home() / ".cache" / "qkv"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder() == tmp_path / "caches" / "qkv"
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "mine"))
    prepare_texts(file_in(tmp_path, POEM), byte_pairs)
    assert folders(tmp_path / "mine") == ["prepared"]


def test_without_a_terminal_it_is_quiet(
    tmp_path: Path, byte_pairs: Tokenizer, capfd: pytest.CaptureFixture
) -> None:
    prepare_texts(file_in(tmp_path, POEM), byte_pairs, cache=tmp_path / "cache")
    assert capfd.readouterr() == ("", "")


# Whole or not at all


@pytest.mark.parametrize(
    "damage", ["shorter", "longer", "missing", "manifest", "no manifest", "another's"]
)
def test_damaged_files_are_prepared_again(
    damage: str, tmp_path: Path, byte_pairs: Tokenizer, capsys: pytest.CaptureFixture
) -> None:
    cache = tmp_path / "cache"
    expected = everything(prepare_texts(file_in(tmp_path, POEM), byte_pairs, cache=cache))
    (shard,) = cache.glob("*/prepared/texts-00000.bin")
    manifest = shard.with_name("manifest.json")
    content = manifest.read_text()
    if damage == "shorter":
        os.truncate(shard, 10)
    elif damage == "longer":
        shard.write_bytes(shard.read_bytes() + b"ab")
    elif damage == "missing":
        shard.unlink()
    elif damage == "manifest":
        manifest.write_text(content[:50])
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text(content.replace(json.loads(content)["key"], "0" * 64))
    again = prepare_texts(file_in(tmp_path, POEM), byte_pairs, cache=cache)
    assert everything(again) == expected
    assert "preparing it again" in capsys.readouterr().err
    assert folders(cache) == ["prepared"]
    assert everything(prepare_texts(file_in(tmp_path, POEM), byte_pairs, cache=cache)) == expected
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("small")
def test_an_error_during_writing_leaves_nothing(
    tmp_path: Path, byte_pairs: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    source = file_in(tmp_path, POEM * 10)
    write = shards.ShardedIdsWriter.write
    written = 0

    def broken(self: shards.ShardedIdsWriter, ids: np.ndarray, ends: np.ndarray) -> None:
        nonlocal written
        written += 1
        if written == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, ids, ends)

    with monkeypatch.context() as patched:
        patched.setattr(shards.ShardedIdsWriter, "write", broken)
        with pytest.raises(
            DiskFull, match=r"no room on the disk to prepare .*make room, or set QKV_CACHE"
        ):
            prepare_texts(source, byte_pairs, cache=cache)
    assert folders(cache) == []
    assert everything(prepare_texts(source, byte_pairs, cache=cache)) == [
        *byte_pairs.encode(POEM * 10),
        byte_pairs.end,
    ]


def test_files_of_a_killed_process_are_not_used_and_removed(
    tmp_path: Path, byte_pairs: Tokenizer
) -> None:
    """The process is killed in the middle of writing."""
    cache = tmp_path / "cache"
    file_in(tmp_path, POEM * 100)
    byte_pairs.write(tmp_path / "tokenizer.json")
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == -9, run.stderr
    (partial,) = folders(cache)
    assert partial.startswith(".writing-")
    tokens = prepare_texts(open_texts([str(tmp_path / "my.txt")]), byte_pairs, cache=cache)
    assert everything(tokens) == [*byte_pairs.encode(POEM * 100), byte_pairs.end]
    assert folders(cache) == ["prepared"]


KILLED = """
import os, signal, sys
from pathlib import Path
from qkv.data.tokens import encode, prepare, shards
from qkv.data.sources.source import open_texts
from qkv.text.tokenizer import Tokenizer

encode.BATCH = 1000
write = shards.ShardedIdsWriter.write

def dying(self, ids, ends):
    write(self, ids, ends)
    self.shard.flush()
    if self.tokens > 3000:
        os.kill(os.getpid(), signal.SIGKILL)

shards.ShardedIdsWriter.write = dying
folder = Path(sys.argv[1])
source = open_texts([str(folder / "my.txt")])
prepare.prepare_texts(source, Tokenizer.read(folder / "tokenizer.json"), cache=folder / "cache")
"""


@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.usefixtures("small")
def test_several_at_once_do_no_harm(
    locks: bool, tmp_path: Path, byte_pairs: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All start with an empty cache; without locks all of them write, and one result stays."""

    @contextmanager
    def no_locks(lock: Path) -> Iterator[bool]:
        yield False

    count = 4
    results: list[list[int]] = []
    manifests: list[int] = []
    text = POEM * 10
    sources = [file_in(tmp_path, text) for _ in range(count)]
    if not locks:
        monkeypatch.setattr(prepare, "file_lock", no_locks)
    barrier = threading.Barrier(count)

    def counted(*arguments: object) -> None:
        manifests.append(1)
        shards.write_manifest(*arguments)
        if not locks:
            barrier.wait(timeout=60)  # all are complete before any is moved to its place

    monkeypatch.setattr(prepare, "write_manifest", counted)

    def work(source: TextSource) -> None:
        results.append(
            everything(prepare_texts(source, byte_pairs, cache=tmp_path / "cache", progress=False))
        )

    threads = [threading.Thread(target=work, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[*byte_pairs.encode(text), byte_pairs.end]] * count
    assert len(manifests) == (1 if locks else count)
    assert folders(tmp_path / "cache") == ["prepared"]


# Errors


@pytest.fixture
def lossy() -> Tokenizer:
    """A tokenizer that drops characters it does not know."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.train_from_iterator([POEM], tokenizers.trainers.BpeTrainer(vocab_size=80))
    return Tokenizer(inner)


def test_no_tokens_at_all(tmp_path: Path, lossy: Tokenizer) -> None:
    with pytest.raises(
        ValueError, match=r"texts.jsonl: there is no text in it; give a file that has some"
    ):
        prepare_texts(texts_in(tmp_path, "日本", "中文"), lossy, cache=tmp_path / "cache")
    assert folders(tmp_path / "cache") == []


def test_texts_without_tokens_are_left_out(tmp_path: Path, lossy: Tokenizer) -> None:
    tokens = prepare_texts(
        texts_in(tmp_path, "日本", "the cat", "中文", "mice"), lossy, cache=tmp_path / "cache"
    )
    sizes = [len(lossy.encode(text)) for text in ("the cat", "mice")]
    assert everything(tokens) == [*lossy.encode("the cat"), *lossy.encode("mice")]
    assert tokens.ends.tolist() == np.cumsum(sizes).tolist()


@pytest.mark.parametrize(("line", "side"), [("日本\tcat", "source"), ("cat\t日本", "target")])
def test_a_pair_with_a_side_without_tokens(
    line: str, side: str, tmp_path: Path, lossy: Tokenizer
) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(f"cat\tdog\nthe\tmouse\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"pairs.tsv: the {side} of pair 3 has no tokens"):
        prepare_pairs(open_pairs([str(file)]), lossy, cache=tmp_path / "cache")
    assert folders(tmp_path / "cache") == []


def test_a_fraction_that_holds_out_nothing(tmp_path: Path) -> None:
    tokens = make_texts([[5, 6, 7]])
    with pytest.raises(
        ValueError, match=r"held_out: 0.1 of 3 tokens leaves 0 to validate on; give more data"
    ):
        tokens.split(0.1)
    for wrong in (0.0, 1.0, -1.0):
        with pytest.raises(
            ValueError, match=f"held_out: expected a fraction between 0 and 1, not {wrong}"
        ):
            tokens.split(wrong)
