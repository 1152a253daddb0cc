"""Stack Overflow's tags as TensorFlow Federated publishes them: one SQLite file of posts, each of a user.

The table ``examples`` has ``split_name``, ``client_id`` and ``serialized_example_proto``: a message of TensorFlow's
``Example`` with the texts ``tokens``, ``title`` and ``tags`` (separated by ``|``), read here without TensorFlow.
A sample is the share of each of the most frequent words among all words of tokens and title; its labels are the most
frequent tags. Frequencies are those in the JSON files ``stackoverflow.word_count`` and ``stackoverflow.tag_count``,
where they lie beside the file, else of the training samples that are read.

Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021 (tag prediction: 10,000 words, 500 tags).
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.files.cache import fingerprint
from fedsmoo.data.files.plain import parse_json, read_plain
from fedsmoo.data.files.tree import file_tree
from fedsmoo.data.forms.build import join_in_memory, make_dataset
from fedsmoo.data.forms.decoding.store import load_or_build_in_memory
from fedsmoo.data.forms.options import Options, ReaderOptions
from fedsmoo.data.forms.parts import Federation, Part

FILE = "stackoverflow.sqlite"
NOT_READ = {".lzma": "unpack it first (xz --format=lzma -d)", ".xz": "unpack it first (xz -d)", ".bz2": "", ".h5": ""}
LARGEST = 2**34  # bytes of samples, which are floats for each word
LONGEST = 2**24  # bytes of a file of frequencies
CLIENTS = "SELECT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id LIMIT ?"
POSTS = "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? ORDER BY rowid LIMIT ?"

Post = tuple[list[str], list[str]]  # words and tags


@dataclass(frozen=True)
class TagOptions(ReaderOptions):
    """How much is read: users by name, samples of a user, and how many words and tags count."""

    users: int = 100
    samples: int = 1000
    words: int = 10_000
    tags: int = 500


def stackoverflow_tags(path: str, given: Mapping[str, Any]) -> Dataset:
    """Return the posts in a file, or in the folder that holds it, decoded once and kept."""
    what = "data set stackoverflow-tags"
    options = TagOptions.of(given, what)
    file = database(Path(path), what)
    beside = [file.with_name(f"stackoverflow.{kind}_count") for kind in ("word", "tag")]
    stamps = [fingerprint(file_tree(p)) for p in (file, *beside) if p.is_file()]
    key = f"stackoverflow-tags {stamps} {json.dumps(asdict(options))}"
    return load_or_build_in_memory(key, lambda: build(file, beside, options, what))


def database(place: Path, what: str) -> Path:
    """Return the SQLite file at a place; say what to do with files of other forms."""
    file = place / FILE if place.is_dir() else place
    if file.is_file() and file.suffix not in NOT_READ:
        return file
    others = [p for p in (sorted(place.iterdir()) if place.is_dir() else [place]) if p.suffix in NOT_READ]
    if others:
        hint = NOT_READ[others[0].suffix] or f"take {FILE}.lzma of the same publisher instead"
        raise FedsmooError(f"{what}: {others[0]} cannot be read as it is: {hint}")
    raise FedsmooError(f"{what}: there is no {FILE} in {place}")


def build(file: Path, beside: list[Path], options: TagOptions, what: str) -> Dataset:
    """Return the data of the first users of the training and of the test part."""
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
            train, test = (posts_of(base, part, options, what) for part in ("train", "test"))
    except sqlite3.Error as e:
        raise FedsmooError(f"{what}: {file} is not the published SQLite file: {e}") from None
    if not train:
        raise FedsmooError(f"{what}: {file} has no training samples")
    count = sum(map(len, (*train.values(), *test.values())))
    if count * options.words * 4 > LARGEST:
        size = f"{count} samples of {options.words} words are {count * options.words * 4 / 2**30:.0f} GiB"
        raise FedsmooError(f"{what}: {size}, more than {LARGEST // 2**30}: set users, samples or words lower")
    mine = [post for posts in train.values() for post in posts]
    words = most_frequent(beside[0], (w for post in mine for w in post[0]), options.words)
    tags = most_frequent(beside[1], (t for post in mine for t in post[1]), options.tags)
    if not words or not tags:
        raise FedsmooError(f"{what}: {file} has no words or no tags")
    parts = tuple(make_part(posts, words, tags, f"{what}: user {user!r}") for user, posts in train.items())
    rest = [post for posts in test.values() for post in posts]
    found = Federation(parts, (), make_part(rest, words, tags, f"{what}: test part") if rest else None, natural=True)
    return make_dataset(found, join_in_memory(found), Options(target="labels"), "stackoverflow-tags")


def posts_of(base: sqlite3.Connection, split: str, options: TagOptions, what: str) -> dict[str, list[Post]]:
    """Return the posts of the first users of a part, by user; those without any are left out."""
    users = [str(user) for (user,) in base.execute(CLIENTS, (split, options.users)).fetchall()]
    found = {u: [r[0] for r in base.execute(POSTS, (split, u, options.samples)).fetchall()] for u in users}
    return {u: [read_post(raw, f"{what}: user {u!r}") for raw in rows] for u, rows in found.items() if rows}


def read_post(raw: Any, what: str) -> Post:
    """Return the words and the tags of a post."""
    try:
        texts = {name: value.decode() for name, value in texts_in(raw)}
        words = f"{texts['tokens']} {texts['title']}".split()
        return words, [tag for tag in texts["tags"].split("|") if tag]
    except (KeyError, ValueError, IndexError, TypeError) as e:
        raise FedsmooError(f"{what}: a post cannot be read: it needs tokens, title and tags ({e!r})") from None


def texts_in(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and first value of each text in a message ``Example``.

    Its field 1 holds the features, a map: each entry has a name (1) and a feature (2), whose field 1 is a list of
    bytes, the values of which are that list's fields 1.
    """
    for _, features in messages(raw, 1):
        for _, entry in messages(features, 1):
            inside = dict(messages(entry))
            for _, values in messages(inside[2], 1):
                for _, value in messages(values, 1):
                    yield inside[1].decode(), value
                    break


def messages(raw: bytes, only: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the fields of a protocol buffer that have a length; others are passed over."""
    at = 0
    while at < len(raw):
        key, at = varint(raw, at)
        kind = key & 7
        if kind == 0:
            _, at = varint(raw, at)
            continue
        size, at = varint(raw, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + size > len(raw):
            raise ValueError("it ends too early")
        if kind == 2 and only in (None, key >> 3):
            yield key >> 3, raw[at : at + size]
        at += size


def varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, seven bits a byte and the lowest first, and the place after it.

    >>> varint(bytes([0xAC, 0x02]), 0)
    (300, 2)
    """
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number is too long")


def most_frequent(path: Path, seen: Iterable[str], count: int) -> dict[str, int]:
    """Return the numbers of the most frequent words, by the file's counts or those of words seen; ties by name."""
    times: Mapping[str, Any] = Counter(seen)
    if path.is_file():
        times = parse_json(read_plain(path, limit=2 * LONGEST) or b"", path, limit=LONGEST)
        if not isinstance(times, dict) or not all(type(n) is int for n in times.values()):
            raise FedsmooError(f"{path}: not a table of how often each word occurs")
    usual = sorted(times, key=lambda word: (-times[word], word))[:count]
    return {word: k for k, word in enumerate(usual)}


def make_part(posts: list[Post], words: dict[str, int], tags: dict[str, int], what: str) -> Part:
    """Return posts as samples: the share of each word among all of a post's, and its tags."""
    x, y = np.zeros((len(posts), len(words)), np.float32), np.zeros((len(posts), len(tags)), np.float32)
    for row, labels, (found, named) in zip(x, y, posts, strict=True):
        np.add.at(row, [words[w] for w in found if w in words], np.float32(1 / max(1, len(found))))
        labels[[tags[t] for t in named if t in tags]] = 1
    return Part(len(x), what, x, y)
