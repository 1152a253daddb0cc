"""What a module returns and is called with: every form trains as the plain tensor does, on every engine."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsmoo import FedsmooError, simulate
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.data.check import from_arrays
from fedsmoo.models.modules.outputs import picked

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((30, 2, 5)).astype(np.float32), np.arange(30) % 3
DATA = from_arrays(X, Y, X[:9], Y[:9])
SETTINGS: dict[str, Any] = {"clients": 3, "cohort": 3, "rounds": 2, "local_steps": 2, "batch_size": 7, "device": "cpu"}
ENGINES = ("serial", "vmap", "batched")


@dataclass
class Answer:
    scores: Tensor
    note: str = "no tensor"


Pair = namedtuple("Pair", "state logits")


class Net(nn.Module):
    """A linear layer, by hand as well; ``shape`` makes of its outputs what the module returns."""

    def __init__(self, shape: Callable[[Tensor], Any] = lambda out: out) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.shape = nn.Linear(10, 3), shape

    def forward(self, x: Tensor) -> Any:
        return self.shape(self.fc(x.flatten(1)))

    def batched(self, p: dict[str, Tensor], x: Tensor) -> Any:
        return self.shape(torch.baddbmm(p["fc.bias"][:, None], x.flatten(2), p["fc.weight"].mT))


def trained(model: nn.Module, engine: str, data: Any = DATA, **settings: Any) -> Tensor:
    result = simulate(model, data, "scaffold", engine=engine, partition="iid", **SETTINGS, **settings)
    assert result.simulation.engine.name == engine
    return result.server.w


@cache
def plain(engine: str) -> Tensor:
    return trained(Net(), engine)


FORMS: dict[str, tuple[Callable[[Tensor], Any], str | None]] = {
    "tuple": (lambda out: (out, out * 0), None),
    "list that begins with no tensor": (lambda out: ["note", None, out], None),
    "dict": (lambda out: {"hidden": out * 0, "logits": out}, None),
    "dict of one": (lambda out: {"scores": out}, None),
    "dataclass": (lambda out: Answer(out), None),
    "object": (lambda out: SimpleNamespace(state=out * 0, logits=out), None),
    "namedtuple with logits": (lambda out: Pair(out * 0, out), None),
    "by name": (lambda out: {"hidden": out * 0, "scores": out}, "scores"),
    "by position": (lambda out: (out * 0, out), "1"),
    "by position in a dict": (lambda out: {"hidden": out * 0, "scores": out}, "1"),
    "by attribute": (lambda out: SimpleNamespace(logits=out * 0, scores=out), "scores"),
    "by field": (lambda out: Pair(out, out * 0), "state"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_outputs_trains_as_the_tensor_does(form: str) -> None:
    shape, output = FORMS[form]
    for engine in ENGINES:
        assert torch.equal(trained(Net(shape), engine, output=output), plain(engine))


def test_the_model_of_a_result_answers_as_its_module_does() -> None:
    result = simulate(Net(lambda out: {"logits": out}), DATA, "fedavg", partition="iid", **SETTINGS)
    out = result.model(torch.from_numpy(X))
    assert set(out) == {"logits"}
    right = float((out["logits"].argmax(1)[:9] == torch.from_numpy(Y[:9])).double().mean())
    assert result.history[-1].test_accuracy == pytest.approx(right)


MANY = {"hidden": torch.ones(1), "scores": torch.ones(1)}
WRONG: list[tuple[Any, str | None, str]] = [
    (None, None, "the model Net returns a NoneType, but must return a tensor of outputs, or a tuple, a dict or"),
    ((), None, "the model Net returns an empty tuple, but must return a tensor"),
    ({"a": "text"}, None, "the model Net returns a dict, but must return a tensor"),
    (3.0, None, "the model Net returns a float, but must return a tensor"),
    (MANY, None, "returns a dict with the tensors hidden, scores, none of them called logits: .* output='hidden'"),
    (SimpleNamespace(**MANY), None, "returns a SimpleNamespace with the tensors hidden, scores"),
    (torch.ones(1), "logits", "output is 'logits', but the model Net returns one tensor: leave output out"),
    (MANY, "score", "unknown output of the model Net, which returns a dict 'score': did you mean 'scores'"),
    ((torch.ones(1),), "1", "unknown output of the model Net, which returns a tuple '1'; known: 0"),
    ({**MANY, "state": (1, 2)}, "state", "there the model Net returns a tuple, no tensor: take hidden or scores"),
]


@pytest.mark.parametrize(("out", "output", "words"), WRONG)
def test_outputs_that_cannot_be_told_are_refused_in_one_line(out: Any, output: str | None, words: str) -> None:
    with pytest.raises(FedsmooError, match=words) as caught:
        picked(out, output, Net())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_a_run_says_so_before_it_begins(engine: str) -> None:
    net = Net(lambda out: {"a": out, "b": out})
    with pytest.raises(FedsmooError, match=r"^the model Net returns a dict with the tensors a, b, none of them called"):
        simulate(net, DATA, "fedavg", engine=engine, partition="iid", **SETTINGS)


def test_models_of_ours_have_one_output() -> None:
    with pytest.raises(
        FedsmooError, match=r"^output is 'logits', but the model softmax returns one tensor: leave output"
    ):
        simulate("softmax", DATA, "fedavg", partition="iid", output="logits", **SETTINGS)


class Two(Net):
    """The same layer, called with two inputs by name."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:  # type: ignore[override]
        return self.fc(torch.cat([first, second], 1))

    def batched(self, p: dict[str, Tensor], first: Tensor, second: Tensor) -> Tensor:  # type: ignore[override]
        return super().batched(p, torch.cat([first, second], 2))


@pytest.mark.parametrize("engine", ENGINES)
def test_several_inputs_go_by_their_names(engine: str) -> None:
    data = from_arrays(X, Y, X[:9], Y[:9], inputs=("first", "second"))
    assert torch.equal(trained(Two(), engine, data), plain(engine))
    swapped = from_arrays(X[:, ::-1].copy(), Y, X[:9, ::-1].copy(), Y[:9], inputs=("second", "first"))
    assert torch.equal(trained(Two(), engine, swapped), plain(engine))


def test_names_that_a_module_does_not_take_are_refused_in_one_line() -> None:
    class Any(Net):
        def forward(self, first: Tensor, **more: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(torch.stack([first, *more.values()], 1))

    named = from_arrays(X, Y, X[:9], Y[:9], inputs=("first", "secnd"))
    with pytest.raises(FedsmooError, match=r"the model Two takes no input named 'secnd', .* takes first, second$"):
        trained(Two(), "serial", named)
    one = from_arrays(X[:, :1], Y, X[:9, :1], Y[:9], inputs=("first",))
    with pytest.raises(
        FedsmooError, match=r"the model Two needs an input 'second', but the inputs of the data are first"
    ):
        trained(Two(), "serial", one)
    with pytest.warns(FedsmooWarning, match=r"the forward of Any does not name the input 'secnd': it may pay no heed"):
        assert torch.equal(trained(Any(), "serial", named), plain("serial"))
    with pytest.raises(FedsmooError, match=r"the model Softmax takes no input named 'first'"):
        simulate("softmax", named, "fedavg", partition="iid", **SETTINGS)
