"""Who holds which samples: a rule turns labels into one list of indices per client.

A client first draws a *prior* over the classes (Dirichlet: ``p_i ~ Dir(u, ..., u)``; pathological: uniform over ``c``
random classes; iid: no prior), then its samples one by one: a class from the prior, a sample from the class.

- *With replacement* every client draws as if it were alone: samples may be shared between clients (or repeated by one),
  every client has ``N // m`` of them, and the class totals of the federation become uneven. For Dirichlet(u) over K
  equal classes the mean square deviation of a class total is
  ``m * (n (1/K)(1 - 1/K) + n (n - 1) (1/K)(1 - 1/K) / (K u + 1))`` with ``n = N / m``.
- *Without replacement* every sample is held by exactly one client. When a class runs out, the clients that wanted it
  draw again among their classes that are left, and from whatever is left once they have none. Pathological clients
  instead divide the classes as evenly as their choices permit, so that all keep to ``c`` classes where they can.

Reference: Sun et al., "Dynamic Regularized Sharpness Aware Minimization in Federated Learning: Approaching Global
Consistency and Smooth Landscape", ICML 2023, "Dataset splitting"; Hsu et al., arXiv:1909.06335 (Dirichlet).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, fields
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.streams import stream
from fedsmoo.data.division.transport import transport

_REPLACEMENT = "clients draw independently of each other, so that they may share samples"
_REFILL = "with replacement: deal each class from a shuffled deck that is refilled when empty (the authors' code)"


@dataclass(frozen=True)
class Partition(ABC):
    """A rule that gives every client its samples."""

    label: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name in ("replacement", "refill"):
            if not isinstance(getattr(self, name, False), bool | np.bool_):  # the word "false" would be true
                raise FedsmooError(
                    f"partition {self.label}: {name} is {getattr(self, name)!r}, but must be True or False"
                )

    @property
    def name(self) -> str:
        """The short name, as ``parse`` reads it: ``dirichlet-0.1``."""
        return self.label

    def to_rule(self) -> dict[str, Any]:
        """Return the partition as plain values, for files."""
        return {"name": self.label, **asdict(self)}

    @abstractmethod
    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        """Return sorted int64 indices into ``labels`` for each of the clients."""


@dataclass(frozen=True)
class IID(Partition):
    """Every client draws from all samples alike."""

    label: ClassVar[str] = "iid"
    replacement: bool = field(default=False, metadata={"help": _REPLACEMENT})

    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        sizes = client_sizes(len(labels), clients, self.replacement)
        rng = stream(seed, "partition")
        if self.replacement:
            samples = rng.integers(len(labels), size=int(sizes.sum()))
        else:
            samples = rng.permutation(len(labels))
        return _cut(samples, np.repeat(np.arange(clients), sizes), clients)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Every client draws its class proportions from a Dirichlet distribution; the smaller u, the more uneven."""

    label: ClassVar[str] = "dirichlet"
    u: float = field(default=0.1, metadata={"help": "concentration: 0.1 is very uneven, 100 almost iid"})
    replacement: bool = field(default=True, metadata={"help": _REPLACEMENT})
    refill: bool = field(default=False, metadata={"help": _REFILL})

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.u, Real) and not isinstance(self.u, bool)
        if not (number and math.isfinite(self.u) and self.u > 0):
            raise FedsmooError(f"partition dirichlet: u is {self.u!r}, but must be a number above 0, such as 0.1")

    @property
    def name(self) -> str:
        return f"{self.label}-{self.u:g}"

    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        sizes = client_sizes(len(labels), clients, self.replacement)
        rng = stream(seed, "partition")
        prior = rng.dirichlet(np.full(classes, self.u), size=clients)
        bad = ~np.isfinite(prior).all(1)  # a tiny u underflows; its limit is a single class
        prior[bad] = np.eye(classes)[rng.integers(classes, size=int(bad.sum()))]
        return _draw(rng, labels, prior, sizes, self.replacement, self.refill)


@dataclass(frozen=True)
class Pathological(Partition):
    """Every client draws from c random classes only, each alike."""

    label: ClassVar[str] = "pathological"
    c: int = field(default=3, metadata={"help": "number of classes that a client draws from"})
    replacement: bool = field(default=True, metadata={"help": _REPLACEMENT})
    refill: bool = field(default=False, metadata={"help": _REFILL})

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.c, Real) and not isinstance(self.c, bool)
        if not number or self.c != int(self.c) or self.c < 1:
            raise FedsmooError(f"partition pathological: c is {self.c!r}, but must be a whole number of at least 1")

    @property
    def name(self) -> str:
        return f"{self.label}-{self.c}"

    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        sizes = client_sizes(len(labels), clients, self.replacement)
        present = np.unique(_checked(labels, classes))  # no client can draw from a class without samples
        if self.c > present.size:
            raise FedsmooError(
                f"partition pathological: c is {self.c}, but the training labels have only {present.size} classes; "
                f"choose c between 1 and {present.size}"
            )
        rng = stream(seed, "partition")
        # Without replacement, clients in blocks share one shuffle of the classes: each client's classes are as random
        # as before, but all classes are wanted about equally often, so that few clients find theirs used up.
        block = 1 if self.replacement else present.size // self.c
        shuffles = rng.permuted(np.tile(present, (-(-clients // block), 1)), axis=1)
        chosen = shuffles[:, : block * self.c].reshape(-1, self.c)[:clients]
        prior = np.zeros((clients, classes))
        np.put_along_axis(prior, chosen, 1.0 / self.c, axis=1)
        counts = None
        if not self.replacement:
            counts = transport(prior > 0, sizes, np.bincount(labels, minlength=classes))
        return _draw(rng, labels, prior, sizes, self.replacement, self.refill, counts)


PARTITIONS: dict[str, type[Partition]] = {kind.label: kind for kind in (IID, Dirichlet, Pathological)}


def parse(text: str, **options: Any) -> Partition:
    """Return the partition with a short name; options such as ``replacement=False`` are set on it.

    >>> parse("dirichlet-0.6", replacement=False)
    Dirichlet(u=0.6, replacement=False, refill=False)
    """
    kind, _, number = text.strip().lower().partition("-")
    if kind not in PARTITIONS:
        raise unknown("partition", text, [kind().name for kind in PARTITIONS.values()])
    if number:
        parameter = fields(PARTITIONS[kind])[0]
        convert = {"float": float, "int": int}.get(str(parameter.type))
        if convert is None:
            raise FedsmooError(f"partition {text!r}: {kind} takes no number; write just {kind!r}")
        try:
            options = {parameter.name: convert(number), **options}
        except ValueError:
            raise FedsmooError(
                f"partition {text!r}: {number!r} is not a value for {parameter.name}; write for example "
                f"'{PARTITIONS[kind]().name}'"
            ) from None
    return from_rule({"name": kind, **options})


def to_rule(partition: Partition) -> dict[str, Any]:
    """Return a partition as plain values, for files; ``from_rule`` reads it back."""
    return partition.to_rule()


def from_rule(rule: dict[str, Any]) -> Partition:
    """Return the partition that :meth:`Partition.to_rule` described; refuse names and options that nobody has."""
    values = dict(rule)
    name = str(values.pop("name", ""))
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    known = [f.name for f in fields(PARTITIONS[name])]
    for key in values:
        if key not in known:
            raise unknown(f"option of partition {name}", key, known)
    return PARTITIONS[name](**values)


def client_sizes(samples: int, clients: int, replacement: bool) -> np.ndarray:
    """Return samples per client: ``N // m``; without replacement the first ``N % m`` clients hold one more."""
    if clients < 1:
        raise FedsmooError(f"partition: {clients} clients asked for, but at least 1 is needed")
    if samples < 1:
        raise FedsmooError("partition: the training data is empty, so there is nothing to give to clients")
    if replacement:
        return np.full(clients, max(1, samples // clients), dtype=np.int64)
    if clients > samples:
        raise FedsmooError(
            f"partition: {clients} clients cannot share {samples} samples without replacement, some would be empty; "
            "use fewer clients, or replacement"
        )
    return samples // clients + (np.arange(clients) < samples % clients).astype(np.int64)


def _checked(labels: np.ndarray, classes: int) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise FedsmooError(
            f"partition: labels have shape {list(labels.shape)}, but a split by class needs one label per sample; "
            "use iid or the data's natural clients"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise FedsmooError(
            f"partition: labels run from {labels.min()} to {labels.max()}, but must lie between 0 and {classes - 1}"
        )
    return labels


def _draw(
    rng: np.random.Generator,
    labels: np.ndarray,
    prior: np.ndarray,
    sizes: np.ndarray,
    replacement: bool,
    refill: bool,
    counts: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Return samples for every client from its class prior ``[m, K]``: first how many of each class, then which.

    ``counts`` are samples per client and class that are already fixed; without replacement the rest is dealt.
    """
    clients, classes = prior.shape
    labels = _checked(labels, classes)
    stock = np.bincount(labels, minlength=classes)
    shuffled = rng.permutation(len(labels))
    pool = shuffled[np.argsort(labels[shuffled], kind="stable")]  # class after class, shuffled inside
    fixed = np.zeros(prior.shape, np.int64) if counts is None else counts
    need, left = sizes - fixed.sum(1), stock - fixed.sum(0)
    counts = fixed + (_ask(rng, need, prior, stock) if replacement else _deal(rng, need, prior, left))

    # From here on class after class: who gets the next sample of class k, and which sample that is.
    owners = np.repeat(np.tile(np.arange(clients), classes), counts.T.ravel())
    totals, start = counts.sum(0), np.cumsum(stock) - stock
    if not replacement:
        samples = pool
    elif refill:
        decks = [np.resize(pool[s : s + n], t) for s, n, t in zip(start, stock, totals, strict=True)]
        samples = np.concatenate(decks)
    else:
        samples = pool[np.repeat(start, totals) + rng.integers(0, np.repeat(stock, totals))]
    return _cut(samples, owners, clients)


def _ask(rng: np.random.Generator, sizes: np.ndarray, prior: np.ndarray, stock: np.ndarray) -> np.ndarray:
    """Return how many samples of each class the clients draw ``[m, K]``, among classes that have any."""
    weight = prior * (stock > 0)
    mass = weight.sum(1, keepdims=True)
    weight = np.where(mass > 1e-300, weight, stock)
    weight = weight / weight.sum(1, keepdims=True)
    counts = rng.multinomial(sizes, weight)
    # The sampler leaves what rounding lost to the last class, even if that has weight 0.
    leaked = np.where(weight == 0, counts, 0)
    counts = counts - leaked
    counts[np.arange(len(counts)), weight.argmax(1)] += leaked.sum(1)
    return counts


def _deal(rng: np.random.Generator, sizes: np.ndarray, prior: np.ndarray, stock: np.ndarray) -> np.ndarray:
    """Return what :func:`_ask` does, without replacement: every pass empties a class or serves all clients."""
    counts, need, left = np.zeros(prior.shape, np.int64), sizes.copy(), stock.copy()
    while (waiting := np.flatnonzero(need)).size:
        ask = _ask(rng, need[waiting], prior[waiting], left)
        for k in np.flatnonzero(ask.sum(0) > left):
            ask[:, k] = rng.multivariate_hypergeometric(ask[:, k], left[k])
        counts[waiting] += ask
        need[waiting] -= ask.sum(1)
        left -= ask.sum(0)
    return counts


def _cut(samples: np.ndarray, owners: np.ndarray, clients: int) -> list[np.ndarray]:
    """Return one sorted list of samples per owner."""
    order = np.lexsort((samples, owners))
    ends = np.cumsum(np.bincount(owners, minlength=clients))
    return np.split(samples[order].astype(np.int64), ends[:-1])
