"""The same command gives the same bits on a GPU, wherever samples lie and whatever ran before it in the process."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.steps.capture import captured
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BASE = {"dataset": "digits", "rounds": 4, "clients": 12, "cohort": 5, "local_epochs": 3, "batch_size": 8, "lr": 0.05}


@pytest.mark.parametrize("model", ["mlp", "cnn_gn"])
@pytest.mark.parametrize("engine", ["batched", "vmap", "serial"])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_the_same_command_gives_the_same_bits(model: str, engine: str, precision: str) -> None:
    runs = [
        assemble(Config(**BASE, model=model, engine=engine, precision=precision, algorithm="fedsmoo", device="cuda"))
        for _ in range(3)
    ]
    for run in runs:
        run.run()
    first, *others = (run.server.w for run in runs)
    assert all(torch.equal(first, w) for w in others)


@pytest.mark.parametrize("method", ["fedavg", "fedsmoo"])
def test_a_round_of_the_papers_size_gives_the_same_bits(method: str) -> None:
    """Ten clients and batches of 50 fill the device, where kernels run beside each other as they do in earnest."""
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.integers(0, 256, (2200, 32, 32, 3), dtype=np.uint8)), torch.arange(2200) % 10
    data = Dataset("noise", x[:2000], y[:2000], x[2000:], y[2000:], 10, (0.5,) * 3, (0.25,) * 3, augment=True)
    config = Config(
        algorithm=method, model="resnet18_gn", clients=20, cohort=10, rounds=3, batch_size=50, local_epochs=10,
        device="cuda", engine="batched", precision="bf16",
    )  # fmt: skip
    indices = [np.arange(100 * i, 100 * i + 100) for i in range(20)]
    runs = [assemble(config, data=data, indices=indices) for _ in range(3)]
    for run in runs:
        run.run()
    first, *others = (run.server.w for run in runs)
    assert all(torch.equal(first, w) for w in others)


@pytest.mark.parametrize("boxes", [True, False])
def test_replays_of_a_gradient_give_one_set_of_bits(boxes: bool) -> None:
    """Ten clients of 50 samples fill the device; what differs is named by its first buffer."""
    if boxes and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("the device has no tensor memory unit")
    from benchmarks.kernels.replays import replayed

    assert replayed(200, boxes=boxes) == {}


@pytest.mark.parametrize("model", ["mlp", "cnn_gn"])
@pytest.mark.parametrize("engine", ["batched", "vmap", "serial"])
@pytest.mark.parametrize("method", ["fedavg", "fedsmoo"])
def test_bits_do_not_depend_on_where_samples_lie(model: str, engine: str, method: str) -> None:
    """From the host's memory, batches are copied ahead on a stream of their own."""
    made = {}
    for where in ("device", "host"):
        made[where] = assemble(
            Config(**BASE, model=model, engine=engine, algorithm=method, samples_in=where, device="cuda")
        )
        made[where].run()
    there = made["host"].setup.task.data
    assert there.x_train.device.type == "cpu"
    device, host = (m.server.w for m in made.values())
    assert torch.equal(device, host)
    assert [r.test_loss for r in made["device"].history] == [r.test_loss for r in made["host"].history]


def test_garbage_of_an_earlier_run_does_not_break_a_capture() -> None:
    x, stream = torch.zeros(8, device="cuda"), torch.cuda.Stream()
    earlier = [captured(lambda: x.add_(1), stream, lambda: None)]
    earlier.append(earlier)  # a cycle, as engines are: only the collector frees it
    del earlier
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        replay = captured(lambda: [x.add_(1) for _ in range(50)], stream, lambda: None)
    finally:
        gc.set_threshold(*before)
    torch.cuda.synchronize()
    x.zero_()
    replay()
    torch.cuda.synchronize()
    assert x.tolist() == [50.0] * 8
