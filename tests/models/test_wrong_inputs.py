"""Models, outputs, losses, starts and factories that are wrong in plausible ways: one line each, before a round."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsmoo import FedsmooError, simulate
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.data.check import from_arrays

FEW: dict[str, Any] = {"clients": 3, "cohort": 2, "rounds": 1, "local_steps": 1, "batch_size": 4, "partition": "iid"}
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((24, 6)).astype(np.float32), np.arange(24) % 3
FILE = """
from torch import nn

def net(shape, outputs, width=4):
    return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, outputs))

def untold(features, outputs):
    return nn.Linear(features, outputs)

def broken(classes):
    return nn.Linear(6, classes / 2)

def words(vocabulary):
    return nn.Embedding(vocabulary, 3)

def nothing(shape):
    pass

TABLE = {"a": 1}
"""


class Net(nn.Module):
    """A linear layer; ``what`` says what becomes of its outputs."""

    def __init__(self, what: Any = lambda out: out, features: int = 6, outputs: int = 3) -> None:
        super().__init__()
        self.fc, self.what = nn.Linear(features, outputs), what

    def forward(self, x: Tensor) -> Any:
        return self.what(self.fc(x))


class Two(Net):
    def forward(self, first: Tensor, second: Tensor) -> Any:  # type: ignore[override]
        return self.what(self.fc(first + second))


def arrays(**more: Any) -> Any:
    return from_arrays(X, Y, X[:6], Y[:6], **more)


def pairs(*names: str) -> Any:
    x = np.stack([X, X], 1)
    return from_arrays(x, Y, x[:6], Y[:6], inputs=names)


def frozen() -> nn.Module:
    return Net().requires_grad_(False)


class Scripted(Net):
    """Draws where nobody's seed reaches."""

    def forward(self, x: Tensor) -> Any:
        return self.fc(x) + torch.from_numpy(np.random.random(3).astype(np.float32)).to(x)


ONE_EACH = "must be a tensor of one loss per sample, [2]"
CE: dict[str, Any] = {"loss": "cross_entropy"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "several tensors": (
        {"model": Net(lambda o: {"a": o, "b": o})},
        "with the tensors a, b, none of them called logits",
    ),
    "no tensor": ({"model": Net(lambda o: "yes")}, "the model Net returns a str, but must return a tensor of outputs"),
    "nothing at all": ({"model": Net(lambda o: None)}, "the model Net returns a NoneType, but must return a tensor"),
    "an empty dict": ({"model": Net(lambda o: {})}, "the model Net returns an empty dict"),
    "no such output": ({"model": Net(lambda o: {"a": o}), "output": "b"}, "unknown output of the model Net, which"),
    "no such place": ({"model": Net(lambda o: (o, o)), "output": "2"}, "returns a tuple '2'; known: 0, 1"),
    "output of a tensor": ({"model": Net(), "output": "0"}, "the model Net returns one tensor: leave output out"),
    "output of ours": ({"model": "mlp", "output": "a"}, "the model mlp returns one tensor: leave output out"),
    "output is no text": ({"model": Net(lambda o: [o]), "output": ["a"]}, "output is ['a'], but must be"),
    "few outputs": ({"model": Net(outputs=2)}, "the model has 2 outputs, but the labels of 'custom' go up to 2"),
    "few outputs in a tuple": (
        {"model": Net(lambda o: (o[:, :2], o[:, 0], o))},
        "3 outputs, one for each class from 0; it returns several tensors, of which the first is taken: name another "
        "one, output='2'",
    ),
    "inputs by other names": ({"model": Two(), "data": pairs("first", "third")}, "takes no input named 'third'"),
    "inputs of one": ({"model": Net(), "data": pairs("x", "y")}, "takes no input named 'y', as the data has it"),
    "too few inputs": (
        {"model": Two(), "data": from_arrays(X[:, None], Y, X[:6, None], Y[:6], inputs=("first",))},
        "the model Two needs an input 'second', but the inputs of the data are first",
    ),
    "all frozen": ({"model": frozen()}, "the model Net has only frozen parameters (requires_grad=False): nothing to"),
    "no parameters": ({"model": nn.Flatten()}, "the model Flatten has no parameters: nothing to train"),
    "numpy's draws": ({"model": Scripted()}, "draws from numpy.random, which does not follow the run's seed"),
    "lazy that cannot": ({"model": nn.Sequential(nn.LazyConv2d(2, 3))}, "has lazy layers, and cannot learn their shap"),
    "a class": ({"model": Net}, "but must be an nn.Module or a model's name: write Net(...)"),
    "a mean as loss": ({"model": Net(), "loss": nn.CrossEntropyLoss()}, f"has the shape [], but {ONE_EACH}"),
    "a loss of nothing": ({"model": Net(), "loss": lambda o, y: None}, f"has the type NoneType, but {ONE_EACH}"),
    "a loss that fails": (
        {"model": Net(), "loss": lambda o, y: o @ y},
        "the loss cannot be computed from outputs [2, 3]",
    ),
    "weights of classes": ({**CE, "loss_options": {"weights": [1, 2]}}, "the loss cannot be computed from outputs"),
    "no such option": ({**CE, "loss_options": {"gamma": 2}}, "unknown option of the loss cross_entropy 'gamma'"),
    "a loss of numbers": ({"loss": "mse"}, "loss is 'mse', but the targets are classes: use cross_entropy"),
    "smoothing of 2": (
        {**CE, "loss_options": {"label_smoothing": 2}},
        "label_smoothing of the loss cross_entropy is 2",
    ),
    "no file": ({"start": "none.pt"}, "start none.pt: there is no such file"),
    "no weights": ({"start": "mine.py"}, "start mine.py is neither a safetensors file nor a state dict"),
    "weights of another": ({"start": "other.pt"}, "start other.pt has no fc1.weight, fc1.bias, fc2.weight and 3 more"),
    "a skip alone": ({"start_skip": "fc.*"}, "start_skip is 'fc.*', but there is no start: name a file"),
    "a skip of nothing": ({"start": "other.pt", "start_skip": "head.*"}, "start_skip: 'head.*' matches nothing"),
    "no such factory": ({"model": "mine.py:nett"}, "unknown model in mine.py 'nett': did you mean 'net'?"),
    "a table": (
        {"model": "mine.py:TABLE"},
        "is a dict, but must be a class of modules, or a function that returns one",
    ),
    "untold": ({"model": "mine.py:untold"}, "missing 1 required positional argument: 'features'"),
    "a broken factory": ({"model": "mine.py:broken"}, "model 'mine.py:broken' cannot be made: "),
    "words of numbers": (
        {"model": "mine.py:words"},
        "the model asks for a vocabulary, but the samples of 'custom' are no",
    ),
    "no module": ({"model": "mine.py:nothing"}, "model 'mine.py:nothing' made a NoneType, not an nn.Module"),
    "a strange option": (
        {"model": "mine.py:net", "model_options": {"depth": 2}},
        "unknown option of model 'mine.py:net'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_input_is_one_line(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    torch.save(nn.Linear(2, 2).state_dict(), "other.pt")
    given, words = WRONG[case]
    settings = {"model": "mlp", "data": arrays(), "algorithm": "fedavg", **FEW, **given}
    with pytest.raises(FedsmooError) as caught:
        simulate(**settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_features_before_the_outputs_in_a_tuple_are_warned_of() -> None:
    """They train, as outputs of classes that nobody has; with ``output`` said, or the outputs first, all is well."""
    line = r"first of which has 6 outputs for 3 classes and is what trains; .* output='1'"
    with pytest.warns(FedsmooWarning, match=line):
        simulate(Net(lambda o: (o.repeat(1, 2), o)), arrays(), "fedavg", **FEW)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedsmooWarning)
        simulate(Net(lambda o: (o.repeat(1, 2), o)), arrays(), "fedavg", output="1", **FEW)
        simulate(Net(lambda o: (o, o.repeat(1, 2))), arrays(), "fedavg", **FEW)
        simulate(Net(lambda o: (o.repeat(1, 2), o[:, :2])), arrays(), "fedavg", **FEW)
