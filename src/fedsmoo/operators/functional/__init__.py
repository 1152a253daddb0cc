"""Functions of ``torch.nn.functional`` with a client axis in front: ``[C, B, ...]`` inputs and ``[C, ...]`` weights.

Each gives in one call what PyTorch's of that name gives client by client, and can be used under autograd, ``vmap`` and
``torch.compile``.
"""

from __future__ import annotations

from fedsmoo.operators.functional.images import (
    adaptive_avg_pool2d,
    avg_pool2d,
    conv1d,
    conv2d,
    conv_transpose2d,
    max_pool2d,
)
from fedsmoo.operators.functional.rows import batch_norm, embedding, group_norm, layer_norm, linear
from fedsmoo.operators.functional.sequences import (
    gru,
    gru_cell,
    lstm,
    lstm_cell,
    rnn,
    rnn_cell,
    scaled_dot_product_attention,
)

__all__ = [
    "adaptive_avg_pool2d", "avg_pool2d", "batch_norm", "conv1d", "conv2d", "conv_transpose2d", "embedding",
    "group_norm", "gru", "gru_cell", "layer_norm", "linear", "lstm", "lstm_cell", "max_pool2d", "rnn", "rnn_cell",
    "scaled_dot_product_attention",
]  # fmt: skip
