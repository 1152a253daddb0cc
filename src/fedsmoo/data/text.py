"""A next-character task on any text: one client per speaker of a play, or per chunk where nobody speaks.

A speaker is announced by a line with nothing but a name and a colon (``First Citizen:``), as in plain-text editions of
Shakespeare. Each client's text is cut into windows of ``length`` characters; the label at every position is the next
character. The last fifth of every client's windows (at least one) is the test part, so that a test window lies after
everything that the client trained on.

Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017
(one client per speaking role).
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.files.plain import read_plain

NAME = re.compile(r"^([A-Z][^:\n]{0,39}):[ \t]*$", re.MULTILINE)
LONGEST_SPEECH = 5_000  # characters per turn, on average
CHUNK_WINDOWS = 100  # windows of a client where there are no speakers


def text(path: str | Path, length: int = 80) -> Dataset:
    """Return the task for a UTF-8 text file.

    Args:
        path: the file.
        length: characters per window; clients with fewer than two windows have too little to train and test on, and
            are left out.
    """
    source = _read(Path(path).expanduser())
    characters = sorted(set(source))
    number = {c: k for k, c in enumerate(characters)}
    clients = [windows(np.array([number[c] for c in said]), length) for said in split_speakers(source, length)]
    clients = [w for w in clients if len(w) >= 2]
    if not clients:
        raise FedsmooError(f"text {path}: too short, no client has two windows of {length} characters")
    train = [w[: len(w) - _held_out(len(w))] for w in clients]
    test = [w[len(w) - _held_out(len(w)) :] for w in clients]
    both, held = torch.from_numpy(np.concatenate(train)), torch.from_numpy(np.concatenate(test))
    ends = np.cumsum([len(w) for w in train])
    return Dataset(
        name=f"text:{Path(path).name}",
        x_train=both[:, :-1].contiguous(),
        y_train=both[:, 1:].contiguous(),
        x_test=held[:, :-1].contiguous(),
        y_test=held[:, 1:].contiguous(),
        classes=len(characters),
        class_names=tuple(characters),
        natural=tuple(torch.arange(end - len(w), end) for w, end in zip(train, ends, strict=True)),
    )


def _held_out(count: int) -> int:
    return max(1, count // 5)


def _read(path: Path) -> str:
    content = read_plain(path)
    if content is None:
        raise FedsmooError(f"text {path}: no such file")
    try:
        source = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise FedsmooError(f"text {path}: not UTF-8 text (byte {error.start}); convert it first") from None
    if not source.strip():
        raise FedsmooError(f"text {path}: it is empty")
    return source


def split_speakers(source: str, length: int) -> list[str]:
    """Return what each speaker says, in order of appearance, or equal chunks if the text is no play.

    A play has at least two speakers, the first in its first half, and somebody else every 5,000 characters or sooner on
    average: a few headings with a colon in a novel are not speakers.

    >>> split_speakers("ANNA:\\nhello\\n\\nBEN:\\nhi\\n\\nANNA:\\nbye\\n", length=4)
    ['hello\\n\\nbye\\n', 'hi\\n\\n']
    """
    pieces = NAME.split(source)  # text before the first name, then name, words, name, words, ...
    said: dict[str, str] = defaultdict(str)
    for name, words in zip(pieces[1::2], pieces[2::2], strict=True):
        said[name.strip()] += words.removeprefix("\n")
    turns = len(pieces) // 2
    if len(said) >= 2 and 2 * len(pieces[0]) <= len(source) <= LONGEST_SPEECH * turns:
        return list(said.values())
    step = CHUNK_WINDOWS * length + 1
    return [source[i : i + step] for i in range(0, len(source), step)]


def windows(ids: np.ndarray, length: int) -> np.ndarray:
    """Return all full windows ``[n, length + 1]``, each starting at the character its predecessor had to guess last."""
    count = max(0, (len(ids) - 1) // length)
    return ids[np.arange(count)[:, None] * length + np.arange(length + 1)]
