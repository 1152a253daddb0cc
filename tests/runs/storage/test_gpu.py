"""On a GPU: a run that was stopped and resumed leaves the same bits as one never stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsmoo.runs.config import Config
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.storage.names import MODEL
from fedsmoo.runs.storage.reader import read_run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def images(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    parts = {}
    for name, count in (("train", 800), ("test", 100)):
        parts[f"x_{name}"] = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        parts[f"y_{name}"] = (np.arange(count) % 10).astype(np.int64)
    np.savez(folder / "cifar10.npz", **parts)
    return folder


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedsmoo"])
@pytest.mark.parametrize("model", ["mlp", "resnet18_gn"])
def test_resumed_bits_on_a_gpu(method: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSMOO_DATA", str(images(tmp_path)))
    config = Config(
        algorithm=method, model=model, dataset="cifar10", clients=8, cohort=4, rounds=6, local_epochs=1, batch_size=20,
        partition="dirichlet-0.5", engine="batched", device="cuda",
    )  # fmt: skip
    Run.begin(config, tmp_path / "whole").go()
    seen: list[int] = []
    Run.begin(config, tmp_path / "cut").go(callback=lambda r: seen.append(r.round), stop=lambda: len(seen) == 3)
    reopen(tmp_path / "cut").go()
    whole, cut = (read_run(tmp_path / name).history for name in ("whole", "cut"))
    assert [r.train_loss for r in whole] == [r.train_loss for r in cut]
    assert (tmp_path / "whole" / MODEL).read_bytes() == (tmp_path / "cut" / MODEL).read_bytes()
