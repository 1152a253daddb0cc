"""What stands for a reader's own data, models and clients where a document names them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedsmoo import simulate


def own_names() -> dict[str, Any]:
    """Return the names of docs/data.md, as small as can be, and a ``fedsmoo.simulate`` of one round."""
    from datasets import Dataset, DatasetDict
    from transformers import BertConfig, BertForSequenceClassification

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 2)).astype("float32"), np.arange(40) % 2
    whole = TensorDataset(torch.tensor(x), torch.tensor(y))
    tokens = {"input_ids": [[1 + k % 9] * (3 + k % 2) for k in range(16)], "label": [k % 2 for k in range(16)]}
    tokens["attention_mask"] = [[1] * len(row) for row in tokens["input_ids"]]
    small = BertConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)

    def one_round(model: nn.Module, data: Any, **settings: Any) -> Any:
        natural = "client" in settings or (isinstance(data, dict) and "train" not in data)
        few = {} if natural else {"clients": 4}
        result = simulate(model, data, "fedavg", cohort=2, rounds=1, local_steps=1, **few, **settings)
        assert len(result.history) == 1
        return result

    return {
        "fedsmoo": SimpleNamespace(simulate=one_round),
        "model": nn.Linear(2, 2),
        "train_set": whole,
        "test_set": whole,
        "frame": pd.DataFrame({"age": x[:, 0], "dose": x[:, 1], "diagnosis": y, "hospital": np.arange(40) // 10}),
        "bert": BertForSequenceClassification(small),
        "tokenised": DatasetDict(train=Dataset.from_dict(tokens), test=Dataset.from_dict(tokens)),
        "tokenizer": SimpleNamespace(pad_token_id=0),
        "train_a": (x[:10], y[:10]),
        "test_a": (x[10:20], y[10:20]),
        "train_b": (x[20:30], y[20:30]),
        "test_b": (x[30:], y[30:]),
    }
