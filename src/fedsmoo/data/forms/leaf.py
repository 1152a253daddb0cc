"""LEAF's JSON files (FEMNIST, Shakespeare, Sent140): a user is a client, with a test part of its own.

A folder has ``train/*.json`` and ``test/*.json``, each with ``users``, ``num_samples`` and ``user_data``. What a sample
is decides how it is read: a list of numbers is features (784 of them an image of 28x28), a text with a single character
as its label is a window of characters, and a list of texts is a tweet, whose fifth field is what somebody wrote.

Reference: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError, brief
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.files.cache import fingerprint
from fedsmoo.data.files.plain import parse_json, read_plain
from fedsmoo.data.files.tree import LARGEST, Tree, folder_tree
from fedsmoo.data.forms.build import join_in_memory, make_dataset
from fedsmoo.data.forms.decoding.store import load_or_build_in_memory
from fedsmoo.data.forms.options import Options, ReaderOptions
from fedsmoo.data.forms.parts import Federation, Part

# The characters of LEAF's Shakespeare in the order in which it numbers them.
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
# The classes of FEMNIST: digits, capitals, small letters.
GLYPHS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
SIDE, TEXT_FIELD = 28, 4
PAD, UNKNOWN = 0, 1  # the numbers of no word, and of a word that is not among the usual ones
WORD = re.compile(r"[a-z0-9']+|[^\sa-z0-9']")
MOST_VALUES = 500_000_000  # in one file
NUMBERS, CHARACTERS, TWEETS = "lists of numbers", "texts with a character to follow", "tweets"

Users = dict[str, tuple[list[Any], list[Any]]]


@dataclass(frozen=True)
class LeafOptions(ReaderOptions):
    """How texts are read: a label at every position, and how many words and words per tweet there are."""

    positions: bool = False
    words: int = 10_000
    length: int = 25


def leaf(path: str, given: Mapping[str, Any]) -> Dataset:
    """Return the data in a folder of LEAF's, or in the folder ``data`` below it, decoded once and kept."""
    what = f"leaf {path}"
    options = LeafOptions.of(given, what)
    tree = leaf_tree(Path(path).expanduser(), what)
    key = f"leaf {fingerprint(tree)} {json.dumps(asdict(options))}"
    return load_or_build_in_memory(key, lambda: build(tree, options, what)).renamed(f"leaf:{Path(path).name}")


def leaf_tree(folder: Path, what: str) -> Tree:
    """Return the JSON files below ``train/`` and ``test/``; refuse a folder without."""
    place = next((p for p in (folder, folder / "data") if (p / "train").is_dir()), None)
    if place is None:
        raise FedsmooError(f"{what}: no folder train/ there; LEAF's have train/*.json and test/*.json")
    found = folder_tree(place, 1)
    names = [n for n in found.sizes if re.fullmatch(r"(train|test)/[^/]+\.json", n)]
    if not any(n.startswith("train/") for n in names):
        raise FedsmooError(f"{what}: no .json in {place / 'train'}")
    kept = {n: found.sizes[n] for n in names}
    return Tree(found.where, kept, found.read, {n: found.times[n] for n in names})


def build(tree: Tree, options: LeafOptions, what: str) -> Dataset:
    """Return the data of all files: a training and a test part for each user."""
    train, test = (users_in(tree, part) for part in ("train", "test"))
    train = {user: found for user, found in train.items() if found[1]}
    if not train:
        raise FedsmooError(f"{what}: no user has a training sample")
    pairs = (pair for some in (train, test) for found in some.values() for pair in zip(*found, strict=True))
    kinds = {kind_of(x, y, what) for x, y in pairs}
    if len(kinds) > 1:
        raise FedsmooError(f"{what}: samples are {' and '.join(sorted(kinds))}, but must be of one kind")
    kind = kinds.pop()
    read = {NUMBERS: number_reader, CHARACTERS: character_reader, TWEETS: tweet_reader}[kind](train, options)
    parts = [{u: make_part(u, some[u], read, what) for u in sorted(some) if some[u][1]} for some in (train, test)]
    names = names_of(kind, [p for some in parts for p in some.values()])
    mine, tested = ({u: replace(p, class_names=names) for u, p in some.items()} for some in parts)
    rest = [p for u, p in tested.items() if u not in mine]
    found = Federation(tuple(mine.values()), tuple(tested.get(u) for u in mine), single_test_part(rest), natural=True)
    return make_dataset(found, join_in_memory(found), Options(), "leaf")


def single_test_part(parts: list[Part]) -> Part | None:
    """Return the test samples of users that do not train."""
    if not parts:
        return None
    x, y = np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts])
    return replace(parts[0], count=len(x), x=x, y=y)


def users_in(tree: Tree, part: str) -> Users:
    """Return the samples and labels of each user in the files of a part, checked as far as their form goes."""
    out: Users = {}
    for name in sorted(n for n in tree.sizes if n.startswith(f"{part}/")):
        path = Path(tree.where) / name
        content = read_plain(path, limit=LARGEST)
        table = parse_json(content or b"", path, limit=MOST_VALUES)
        data = table.get("user_data") if isinstance(table, dict) else None
        users, counts = (table.get(n) if isinstance(table, dict) else None for n in ("users", "num_samples"))
        if not isinstance(data, dict) or not isinstance(users, list) or not isinstance(counts, list):
            raise FedsmooError(f"{path}: not a file of LEAF's: it needs users, num_samples and user_data")
        if len(users) != len(counts):
            raise FedsmooError(f"{path}: {len(users)} users, but {len(counts)} numbers of samples")
        for user, count in zip(users, counts, strict=True):
            if not isinstance(user, str) or user in out:
                raise FedsmooError(f"{path}: user {brief(user)} is no name, or is there twice")
            mine = data.get(user)
            x, y = (mine.get(n) if isinstance(mine, dict) else None for n in "xy")
            if not isinstance(x, list) or not isinstance(y, list):
                raise FedsmooError(f"{path}: user {user!r} has no lists x and y")
            if not len(x) == len(y) == count:
                have = f"{len(x)} samples and {len(y)} labels"
                raise FedsmooError(f"{path}: user {user!r} has {have}, but num_samples says {brief(count)}")
            out[user] = (x, y)
    return out


def kind_of(x: Any, y: Any, what: str) -> str:
    """Return what a sample is."""
    if isinstance(x, list) and x and isinstance(x[0], int | float):
        return NUMBERS
    if isinstance(x, str) and isinstance(y, str) and len(y) == 1:
        return CHARACTERS
    if isinstance(x, list) and len(x) > TEXT_FIELD and isinstance(x[TEXT_FIELD], str):
        return TWEETS
    raise FedsmooError(
        f"{what}: a sample is {brief(x)} with the label {brief(y)}, but must be a list of numbers (FEMNIST), a text "
        "with one character (Shakespeare) or the fields of a tweet (Sent140)"
    )


def number_reader(train: Users, options: LeafOptions) -> Any:
    """Return what reads lists of numbers: images of 28x28, or features."""

    def read(xs: list[Any], ys: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        x, y = np.asarray(xs, np.float32), np.asarray(ys)
        if y.dtype.kind not in "iu":
            raise ValueError("labels are no whole numbers")
        return x.reshape(-1, 1, SIDE, SIDE) if x.shape[1] == SIDE * SIDE else x, y

    return read


def character_reader(train: Users, options: LeafOptions) -> Any:
    """Return what reads windows of characters and the one that follows, by LEAF's numbers of characters."""
    number = {c: k for k, c in enumerate(LETTERS)}

    def read(xs: list[Any], ys: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        strange = sorted({c for text in (*xs, *ys) for c in text} - number.keys())
        if strange:
            raise ValueError(f"the character {strange[0]!r} is not among LEAF's {len(LETTERS)}")
        x, y = np.array([[number[c] for c in text] for text in xs]), np.array([number[c] for c in ys])
        return x, np.concatenate([x[:, 1:], y[:, None]], 1) if options.positions else y

    return read


def words_in(text: str) -> list[str]:
    """Return the words of a tweet: small letters, digits and apostrophes; every other sign is a word of its own.

    >>> words_in("Don't panic, @Ann!!")
    ["don't", 'panic', ',', '@', 'ann', '!', '!']
    """
    return WORD.findall(text.lower())


def tweet_reader(train: Users, options: LeafOptions) -> Any:
    """Return what reads tweets: the usual words of the training part by number, the most frequent first."""
    count = Counter(w for xs, _ in train.values() for x in xs for w in words_in(x[TEXT_FIELD]))
    usual = sorted(count, key=lambda w: (-count[w], w))[: options.words]
    number = {w: k + UNKNOWN + 1 for k, w in enumerate(usual)}

    def read(xs: list[Any], ys: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        x = np.full((len(xs), options.length), PAD, np.int64)
        for row, fields_ in zip(x, xs, strict=True):
            found = [number.get(w, UNKNOWN) for w in words_in(fields_[TEXT_FIELD])][: options.length]
            row[: len(found)] = found
        return x, np.array([int(y) for y in ys])

    return read


def make_part(user: str, found: tuple[list[Any], list[Any]], read: Any, what: str) -> Part:
    """Return a user's samples as a part."""
    where = f"{what}: user {user!r}"
    try:
        x, y = read(*found)
    except (ValueError, TypeError, IndexError, OverflowError) as e:
        raise FedsmooError(f"{where}: samples cannot be read: {e}") from None
    return Part(len(x), where, x, y)


def names_of(kind: str, parts: list[Part]) -> tuple[str, ...] | None:
    """Return the names of the classes: FEMNIST's glyphs and Shakespeare's characters are known."""
    if kind == CHARACTERS:
        return tuple(LETTERS)
    glyphs = kind == NUMBERS and parts[0].x.shape[1:] == (1, SIDE, SIDE)
    return GLYPHS if glyphs and 10 <= max(int(p.y.max()) for p in parts) < len(GLYPHS) else None
