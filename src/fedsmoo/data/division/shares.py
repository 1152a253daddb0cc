"""Partitions that cut what there is into shares, without replacement: by class, by amount, by shards, by given sizes.

References: Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022 (NIID-Bench: shares
of classes and of amounts); McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017 (shards).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedsmoo.core.errors import FedsmooError, brief
from fedsmoo.core.random.streams import stream
from fedsmoo.data.division.draws import checked_labels, class_after_class, client_sizes, lists_by_owner
from fedsmoo.data.division.rule import Partition, is_number, positive_option

DRAWS = 5000  # of shares, until nobody has too few samples
_ALPHA = "concentration: 0.1 is very uneven, 100 almost even"
_LEAST = "samples that every client holds at least: shares are drawn again until all do"


@dataclass(frozen=True)
class ClassWise(Partition):
    """Each class is cut into clients' shares, drawn from a Dirichlet distribution (NIID-Bench); no sample twice.

    Class after class, shares ``p ~ Dir(alpha, ..., alpha)`` over the m clients; client j gets what lies between
    ``floor(n (p_1 + ... + p_{j-1}))`` and ``floor(n (p_1 + ... + p_j))`` of the class's n shuffled samples. With
    ``balance``, as in the released code, a client that holds N/m samples or more gets no share of further classes.
    """

    label: ClassVar[str] = "classwise"
    alpha: float = positive_option(0.5, _ALPHA)
    least: int = positive_option(10, _LEAST)
    balance: bool = field(default=True, metadata={"help": "who holds N/m samples gets none of further classes"})

    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        refuse_too_few(self.name, len(labels), clients, self.least)
        stock = np.bincount(checked_labels(labels, classes), minlength=classes)
        rng = stream(seed, "partition")
        pool = class_after_class(rng, labels)
        full = len(labels) / clients if self.balance else np.inf
        counts = draw_shares(rng, stock, clients, self.alpha, self.least, full, self.name)
        return lists_by_owner(pool, np.repeat(np.tile(np.arange(clients), classes), counts.ravel()), clients)


@dataclass(frozen=True)
class Quantity(Partition):
    """Clients hold unequal amounts, whose shares are drawn from a Dirichlet distribution; their classes are alike."""

    label: ClassVar[str] = "quantity"
    alpha: float = positive_option(0.5, _ALPHA)
    least: int = positive_option(10, _LEAST)

    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        refuse_too_few(self.name, len(labels), clients, self.least)
        rng = stream(seed, "partition")
        samples = rng.permutation(len(labels))
        counts = draw_shares(rng, np.array([len(labels)]), clients, self.alpha, self.least, np.inf, self.name)
        return lists_by_owner(samples, np.repeat(np.arange(clients), counts[0]), clients)


@dataclass(frozen=True)
class Shards(Partition):
    """Samples are sorted by label and cut into equal shards, of which every client gets k at random."""

    label: ClassVar[str] = "shards"
    k: int = positive_option(2, "shards per client; their sizes differ by at most one sample")

    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        refuse_too_few(self.name, len(labels), clients, self.k)
        rng = stream(seed, "partition")
        pool = class_after_class(rng, checked_labels(labels, classes))
        sizes = client_sizes(len(labels), clients * self.k, replacement=False)
        owners = rng.permutation(np.repeat(np.arange(clients), self.k))
        return lists_by_owner(pool, np.repeat(owners, sizes), clients)


@dataclass(frozen=True)
class Sizes(Partition):
    """Clients hold as many samples as a list says, drawn from all alike; what is left over nobody holds."""

    label: ClassVar[str] = "sizes"
    sizes: tuple[int, ...] = field(default=(100, 50), metadata={"help": "samples of each client: as many clients"})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sizes", checked_sizes(self.sizes))

    @property
    def name(self) -> str:
        return f"{self.label}-{','.join(map(str, self.sizes))}"

    @property
    def count(self) -> int:
        return len(self.sizes)

    def to_rule(self) -> dict[str, Any]:
        return {"name": self.label, "sizes": list(self.sizes)}  # as a file gives it back

    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        asked, there = sum(self.sizes), len(labels)
        if clients != self.count:
            raise FedsmooError(f"partition sizes: {self.count} sizes, but {clients} clients: leave clients out")
        if asked > there:
            raise FedsmooError(f"partition sizes: {asked} samples asked for, but there are {there} to train on")
        samples = stream(seed, "partition").permutation(there)[:asked]
        return lists_by_owner(samples, np.repeat(np.arange(clients), self.sizes), clients)


def checked_sizes(sizes: Any) -> tuple[int, ...]:
    """Return sizes as whole numbers from 1; refuse what is none."""
    values = sizes.tolist() if isinstance(sizes, np.ndarray) else sizes
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise FedsmooError(
            f"partition sizes: {brief(sizes)} is no list of client sizes; write for example 'sizes-100,50'"
        )
    for size in values:
        if not is_number(size) or size != size or size in (np.inf, -np.inf) or size != int(size) or size < 1:
            raise FedsmooError(f"partition sizes: a client of {size!r} samples, but must be a whole number from 1")
    return tuple(int(size) for size in values)


def numbers_in(text: str) -> tuple[int, ...]:
    """Return the whole numbers in a text.

    >>> numbers_in("100,50")
    (100, 50)
    """
    return tuple(int(word) for word in text.split(","))


def refuse_too_few(name: str, samples: int, clients: int, least: int) -> None:
    """Refuse a division in which some client could not have as many samples as all must."""
    client_sizes(samples, clients, replacement=False)  # no samples, no clients, more clients than samples
    if clients * least > samples:
        raise FedsmooError(
            f"partition {name}: {clients} clients with at least {least} samples each need {clients * least}, but there "
            f"are {samples}: use fewer clients"
        )


def draw_shares(
    rng: np.random.Generator, stock: np.ndarray, clients: int, alpha: float, least: int, full: float, name: str
) -> np.ndarray:
    """Return how much of each class every client gets ``[K, m]``, drawn again until all hold at least ``least``.

    Args:
        rng: draws K shares of Dir(alpha) over the clients for each attempt.
        stock: samples of each class.
        clients, alpha: of the Dirichlet distribution.
        least: what every client must hold in the end.
        full: who holds that much gets nothing of the classes that follow.
        name: of the partition, for messages.
    """
    for _ in range(DRAWS):
        shares = rng.dirichlet(np.full(clients, alpha), size=len(stock))
        counts, held = np.zeros((len(stock), clients), np.int64), np.zeros(clients, np.int64)
        for row, share, n in zip(counts, shares, stock, strict=True):
            open_ = np.where(held < full, share, 0.0)
            total = open_.sum()
            if not total > 0:  # tiny shares of all that are not full, or an alpha so small that it underflows
                break
            ends = (np.cumsum(open_ / total) * n).astype(np.int64)
            ends[np.flatnonzero(open_)[-1] :] = n  # whatever rounding leaves, it is nobody's who gets no share
            row[:] = np.diff(ends, prepend=0)
            held += row
        else:
            if held.min() >= least:
                return counts
    raise FedsmooError(
        f"partition {name}: in {DRAWS} draws some client always had fewer than {least} samples: use fewer clients, a "
        "larger alpha, or a smaller option least"
    )
