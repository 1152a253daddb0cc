"""Whole numbers with given row and column sums on a given support: who takes how much of what when all must be used."""

from __future__ import annotations

import numpy as np


def transport(support: np.ndarray, rows: np.ndarray, columns: np.ndarray, passes: int = 200) -> np.ndarray:
    """Integer counts ``[m, K]`` on ``support`` whose row sums reach ``rows`` without passing ``columns``.

    Sinkhorn's scaling finds the most even fractional answer ``W``. Its whole part is kept, and a maximum flow places
    the rest: since ``W - floor(W)`` is itself a flow with whole margins, a whole one exists wherever ``W`` does. If the
    support admits no answer, some rows stay short; the caller gives them something else.

    >>> transport(np.array([[True, True], [True, False]]), np.array([3, 2]), np.array([3, 2]))
    array([[1, 2],
           [2, 0]])
    """
    weight = support.astype(float)
    for _ in range(passes):
        weight *= (rows / np.maximum(weight.sum(1), 1e-300))[:, None]
        weight *= columns / np.maximum(weight.sum(0), 1e-300)
    weight *= np.minimum(1.0, rows / np.maximum(weight.sum(1), 1e-300))[:, None]
    counts = np.floor(weight + 1e-6 * support).astype(np.int64)
    # The 1e-6 that lets 2.9999999 count as 3 may overshoot a margin; what it gained is then given back.
    loose = np.where((counts.sum(1) > rows)[:, None] | (counts.sum(0) > columns), np.floor(weight), counts)
    counts = np.minimum(counts, loose.astype(np.int64))
    return counts + _flow(support, rows - counts.sum(1), columns - counts.sum(0))


def _flow(support: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the largest whole-number flow from rows to columns along the support."""
    from scipy.sparse import coo_array  # late: few partitions come here
    from scipy.sparse.csgraph import maximum_flow

    m, k = support.shape
    who, what = np.nonzero(support & (rows > 0)[:, None] & (columns > 0))
    source, sink = m + k, m + k + 1
    starts = np.concatenate([np.full(m, source), who, m + np.arange(k)])
    ends = np.concatenate([np.arange(m), m + what, np.full(k, sink)])
    caps = np.concatenate([rows, np.minimum(rows[who], columns[what]), columns]).astype(np.int32)
    graph = coo_array((caps, (starts, ends)), shape=(m + k + 2, m + k + 2)).tocsr()
    flow = maximum_flow(graph, source, sink).flow.tocsr()
    return np.maximum(flow[:m, m : m + k].toarray(), 0).astype(np.int64)
