"""Draw the samples of clients from priors over classes, with and without replacement."""

from __future__ import annotations

import numpy as np

from fedsmoo.core.errors import FedsmooError


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


def checked_labels(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return labels, one per sample; raise ``FedsmooError`` if they are not, or lie outside of the classes."""
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


def class_after_class(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    """Return all samples, sorted by label and shuffled within each class."""
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def draw_samples(
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
    labels = checked_labels(labels, classes)
    stock = np.bincount(labels, minlength=classes)
    pool = class_after_class(rng, labels)
    fixed = np.zeros(prior.shape, np.int64) if counts is None else counts
    need, left = sizes - fixed.sum(1), stock - fixed.sum(0)
    counts = fixed + (_draw_counts(rng, need, prior, stock) if replacement else _deal_counts(rng, need, prior, left))

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
    return lists_by_owner(samples, owners, clients)


def _draw_counts(rng: np.random.Generator, sizes: np.ndarray, prior: np.ndarray, stock: np.ndarray) -> np.ndarray:
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


def _deal_counts(rng: np.random.Generator, sizes: np.ndarray, prior: np.ndarray, stock: np.ndarray) -> np.ndarray:
    """Return what :func:`_draw_counts` does, without replacement: every pass empties a class or serves all clients."""
    counts, need, left = np.zeros(prior.shape, np.int64), sizes.copy(), stock.copy()
    while (waiting := np.flatnonzero(need)).size:
        ask = _draw_counts(rng, need[waiting], prior[waiting], left)
        for k in np.flatnonzero(ask.sum(0) > left):
            ask[:, k] = rng.multivariate_hypergeometric(ask[:, k], left[k])
        counts[waiting] += ask
        need[waiting] -= ask.sum(1)
        left -= ask.sum(0)
    return counts


def lists_by_owner(samples: np.ndarray, owners: np.ndarray, clients: int) -> list[np.ndarray]:
    """Return one sorted list of samples per owner."""
    order = np.lexsort((samples, owners))
    ends = np.cumsum(np.bincount(owners, minlength=clients))
    return np.split(samples[order].astype(np.int64), ends[:-1])
