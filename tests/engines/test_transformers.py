"""Models of HuggingFace's library in batches of clients: attention masks, dropout, rotary tables, as they come."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsmoo
from fedsmoo.data.check import from_arrays
from fedsmoo.data.dataset import Dataset

transformers = pytest.importorskip("transformers")

TEXT = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 30,
    "max_position_embeddings": 8, "num_labels": 3, "pad_token_id": 0,
}  # fmt: skip
IMAGE = {"image_size": 8, "patch_size": 4, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
SETTINGS = {
    "clients": 4, "cohort": 3, "rounds": 1, "local_epochs": 1, "batch_size": 6, "lr": 0.3, "partition": "dirichlet",
    "dtype": "float64", "device": "cpu",
}  # fmt: skip


def made(kind: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = getattr(transformers, f"{kind}Config")(**options)
        of = "Image" if kind == "ViT" else "Sequence"
        return getattr(transformers, f"{kind}For{of}Classification")(config)

    return make


MODELS = {
    "BERT": made("Bert", **TEXT, attention_probs_dropout_prob=0.2),
    "BERT that draws nothing": made("Bert", **TEXT, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "Llama": made("Llama", **TEXT, num_key_value_heads=1),
    "ViT": made("ViT", **{n: v for n, v in TEXT.items() if n not in ("vocab_size", "pad_token_id")}, **IMAGE),
}


@pytest.fixture(autouse=True)
def no_layer_is_called_client_by_client() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*performance drop.*")
        yield


def samples(name: str) -> Dataset:
    """Texts of unequal length with their masks, or images."""
    rng = np.random.default_rng(0)
    y = np.arange(48) % 3
    if name == "ViT":
        x = rng.standard_normal((48, 3, 8, 8)) + y[:, None, None, None]
        return from_arrays(x[:40], y[:40], x[40:], y[40:])
    length = rng.integers(3, 8, (48, 1))
    mask = (np.arange(7) < length).astype(int)
    x = np.stack([mask * rng.integers(1, 30, (48, 7)), mask], 1)
    return from_arrays(x[:40], y[:40], x[40:], y[40:], inputs=("input_ids", "attention_mask"))


@pytest.mark.parametrize("name", MODELS)
def test_all_clients_at_once_train_as_each_alone(name: str) -> None:
    torch.manual_seed(0)
    module, data = MODELS[name]().double(), samples(name)
    alone, many = (fedsmoo.simulate(module, data, "fedsam", engine=e, **SETTINGS) for e in ("serial", "vmap"))
    assert many.simulation.engine.name == "vmap"
    assert bool(many.simulation.setup.task.model.random) == (name in ("BERT", "ViT"))
    start = many.simulation.setup.task.model.initial()
    assert float((alone.server.w - start).abs().max()) > 1e-3
    assert float((alone.server.w - many.server.w).abs().max()) < 1e-12
