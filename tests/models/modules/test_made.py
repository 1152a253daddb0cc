"""How a module comes to be: factories that ask about the data, and lazy layers that are shown a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedsmoo import FedsmooError, resume, run, simulate
from fedsmoo.data.check import from_arrays
from fedsmoo.data.dataset import Dataset
from fedsmoo.models.modules.factory import FACTS, asked
from fedsmoo.runs.storage.checkpoint import newest
from fedsmoo.runs.storage.names import CHECKPOINT

SETTINGS: dict[str, Any] = {"clients": 4, "cohort": 2, "rounds": 1, "local_steps": 1, "device": "cpu"}
FACTORIES = """
import torch
from torch import nn

def told(shape, classes, samples, data, width=4):
    assert samples == len(data.x_train)
    features = torch.Size(shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(features, width), nn.Linear(width, classes))

def text(vocabulary, classes=7):
    return nn.Embedding(vocabulary, classes)

def stubborn(classes=12):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

def needs(depth):
    return nn.Linear(depth, 2)

def lazy(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(classes))

class LoRA(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.a.mT @ self.b.mT

def lora(classes):
    return nn.Sequential(nn.Flatten(), LoRA(nn.Linear(64, 32)), nn.ReLU(), LoRA(nn.Linear(32, classes)))

def number():
    return 3

net = nn.Linear(2, 2)
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FACTORIES)
    return tmp_path


def shapes(model: str, data: Any = "digits", **settings: Any) -> dict[str, tuple[int, ...]]:
    result = simulate(model, data, "fedavg", **SETTINGS, **settings)
    return dict(result.simulation.setup.task.model.layout.shapes)


def test_a_factory_is_told_what_it_asks_about_the_data(files: Path) -> None:
    assert shapes("mine.py:told") == {"1.weight": (4, 64), "1.bias": (4,), "2.weight": (10, 4), "2.bias": (10,)}
    images = np.zeros((8, 6, 5, 3), np.uint8)
    found = shapes("mine.py:told", (images, np.arange(8) % 2, images, np.arange(8) % 2), model_options={"width": 3})
    assert found == {"1.weight": (3, 90), "1.bias": (3,), "2.weight": (2, 3), "2.bias": (2,)}


def test_a_default_or_an_option_is_the_user_s_own_word(files: Path) -> None:
    assert shapes("mine.py:stubborn")["1.weight"] == (12, 64)
    assert shapes("mine.py:told", model_options={"classes": 11} | {"width": 2}, partition="iid")["2.weight"] == (11, 2)


def test_what_a_vocabulary_is() -> None:
    def data(x: Any, y: Any, **more: Any) -> Dataset:
        return from_arrays(x, y, x, y, **more)

    tokens = np.array([[0, 5, 2], [1, 1, 3]])
    assert FACTS["vocabulary"](data(tokens, [0, 1])) == 6
    assert FACTS["vocabulary"](data(tokens, tokens + 2)) == 8  # the next token may be any class
    pair = data(np.stack([tokens, tokens], 1), [0, 1], inputs=("a", "b"))
    assert FACTS["shape"](pair) == (3,)
    with pytest.raises(
        FedsmooError, match=r"asks for a vocabulary, but the samples of 'custom' are no text: .* numbers"
    ):
        FACTS["vocabulary"](data(np.zeros((2, 3)), [0, 1]))


def test_facts_are_given_where_there_is_no_default() -> None:
    assert asked(lambda shape, classes=3, *, samples: None, {}) == ["shape", "samples"]
    assert asked(lambda shape, samples: None, {"samples": 3}) == ["shape"]


WRONG = {
    "mine.py:needs": "model 'mine.py:needs' cannot be made: .* missing 1 required positional argument: 'depth'",
    "mine.py:number": "model 'mine.py:number' made a int, not an nn.Module",
    "mine.py:net": "model 'mine.py:net' is a Linear, but must be a class of modules, or a function that returns one",
    "mine.py:tld": "unknown model in mine.py 'tld': did you mean 'told'",
    "mine.py:text": "the model asks for a vocabulary, but the samples of 'digits' are no text: they are numbers",
}


@pytest.mark.parametrize("spec", WRONG)
def test_factories_that_cannot_serve_are_refused_in_one_line(files: Path, spec: str) -> None:
    with pytest.raises(FedsmooError, match=WRONG[spec]) as caught:
        simulate(spec, "digits", "fedavg", **SETTINGS)
    assert "\n" not in str(caught.value)


def test_options_that_a_factory_has_not_are_refused(files: Path) -> None:
    with pytest.raises(FedsmooError, match=r"unknown option of model 'mine.py:told' 'widht': did you mean 'width'"):
        simulate("mine.py:told", "digits", "fedavg", model_options={"widht": 3}, **SETTINGS)


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(10))


def test_lazy_layers_learn_their_shapes_from_a_sample_and_their_weights_from_the_seed(files: Path) -> None:
    before = torch.random.get_rng_state()
    net = lazy()
    results = [simulate(net, "digits", "fedavg", seed=seed, **SETTINGS) for seed in (1, 1, 2)]
    task = results[0].simulation.setup.task
    assert dict(task.model.layout.shapes) == {"1.weight": (8, 64), "1.bias": (8,), "3.weight": (10, 8), "3.bias": (10,)}
    assert torch.equal(results[0].server.w, results[1].server.w)
    assert not torch.equal(*(r.simulation.setup.task.model.initial() for r in results[1:]))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert isinstance(net[1].weight, nn.UninitializedParameter)  # the caller's own module stays as it is
    assert results[0].model(task.data.x_test[:2]).shape == (2, 10)
    named = [simulate("mine.py:lazy", "digits", "fedavg", engine=e, **SETTINGS).server.w for e in ("serial", "vmap")]
    assert float((named[0] - named[1]).abs().max()) < 1e-6


def test_lazy_buffers_and_modules_in_float64_are_made_too() -> None:
    """They could not be copied, or did not fit samples in float32; made by hand, the layers train alike."""

    def net(width: type[nn.Module], norm: type[nn.Module], *sizes: int) -> nn.Module:
        body = (nn.Conv2d(1, 4, 3), norm(*sizes[:1]), nn.ReLU(), nn.Flatten(), width(*sizes[1:], 10))
        return nn.Sequential(*body).double()

    settings = {**SETTINGS, "dtype": "float64", "engine": "serial"}
    lazy = net(nn.LazyLinear, nn.LazyBatchNorm2d)
    result = simulate(lazy, "digits", "fedavg", **settings)
    task = result.simulation.setup.task
    ready = net(nn.Linear, nn.BatchNorm2d, 4, 144)
    ready.load_state_dict(task.model.state_dict(task.model.initial()))
    ready[1].reset_running_stats()
    for t in (*ready.parameters(), *ready.buffers()):
        assert t.dtype in (torch.float64, torch.int64)
    again = simulate(ready, "digits", "fedavg", **settings)
    assert torch.equal(result.server.w, again.server.w)
    assert torch.equal(result.model[1].running_mean, again.model[1].running_mean)
    assert isinstance(lazy[1].running_mean, nn.UninitializedBuffer)  # the caller's own module stays as it is


def test_a_lazy_run_is_resumed_to_the_same_bits(files: Path) -> None:
    config = {**SETTINGS, "algorithm": "scaffold", "model": "mine.py:lazy", "rounds": 3}
    whole = run(config, out="whole")
    part = run({**config, "rounds": 3}, out="part", callback=lambda r: r.round < 1)
    assert len(part.history) < 3
    assert torch.equal(resume("part").server.w, whole.server.w)


def test_what_a_file_draws_when_it_is_imported_does_not_move_the_weights(files: Path) -> None:
    first, second = (
        simulate("mine.py:told", "digits", "fedavg", **SETTINGS) for _ in range(2)
    )  # imported by the first
    assert torch.equal(first.server.w, second.server.w)


def test_of_lora_folders_keep_what_trains_and_the_model_is_whole(files: Path) -> None:
    """Two layers of rank 2, 64 to 32 and 32 to 10: 2 (64 + 32) + 2 (32 + 10) numbers train, of 2,686 in all."""
    config = {**SETTINGS, "algorithm": "scaffold", "model": "mine.py:lora", "rounds": 3, "lr": 0.01}
    whole = run(config, out="whole")
    run(config, out="part", callback=lambda r: r.round < 1)
    saved, _ = newest(Path("part") / CHECKPOINT)
    assert saved is not None
    sizes = {v.numel() for _, v in saved.server().items()} | {
        v.numel() for _, row in saved.rows() for v in row.values()
    }
    assert sizes == {276}
    assert torch.equal(resume("part").server.w, whole.server.w)
    assert whole.history[0].bytes_up == 2 * 2 * 4 * 276  # two clients send w and c
    state = load_file("whole/model.safetensors")
    fresh = whole.model
    assert state.keys() == fresh.state_dict().keys()
    assert sum(v.numel() for v in state.values()) == 64 * 32 + 32 + 32 * 10 + 10 + 276
    moved = whole.simulation.setup.task.model
    before = moved.state_dict(moved.initial())
    assert {n for n in state if not torch.equal(state[n], before[n])} <= {"1.a", "1.b", "3.a", "3.b"}
    assert not torch.equal(state["3.b"], before["3.b"])


def test_lazy_layers_that_cannot_learn_are_refused_in_one_line() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(64, 10), nn.LazyLinear(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x.flatten(1))

    with pytest.raises(
        FedsmooError, match=r"^LazyLinear at 'idle' does not know its shape yet, and a pass over a sample"
    ):
        simulate(Idle(), "digits", "fedavg", **SETTINGS)
    with pytest.raises(
        FedsmooError, match=r"Sequential has lazy layers, and cannot learn .* 'digits', .*: Expected 3D"
    ):
        simulate(nn.Sequential(nn.Flatten(), nn.LazyConv2d(3, 3)), "digits", "fedavg", **SETTINGS)
