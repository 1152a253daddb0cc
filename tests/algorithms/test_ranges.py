"""Numbers that a method cannot work with are refused where the method is made, whoever makes it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from fedsmoo.algorithms import ALGORITHMS, FedSMOO, Relaxed
from fedsmoo.core import Algorithm, FedsmooError, option
from fedsmoo.engines.stack import stack_algorithms
from fedsmoo.experiment.resolve import make_algorithm

# option: what is too low, the least and the most that are allowed, what is too high
EDGES = {
    "lr_server": (0.0, 1e-9, 1e9, math.inf),
    "mu": (-1e-9, 0.0, 1e9, math.inf),
    "beta": (0.0, 1e-9, 1e9, math.inf),
    "beta1": (-1e-9, 0.0, 0.999, 1.0),
    "beta2": (-1e-9, 0.0, 0.999, 1.0),
    "tau": (0.0, 1e-9, 1e9, math.inf),
    "rho": (-1e-9, 0.0, 1e9, math.inf),
    "r": (-1.0, 0.0, 1e9, math.inf),
    "alpha": (-1e-9, 0.5, 1.0, 1.001),
}
CASES = [
    (name, f.name) for name, cls in ALGORITHMS.items() for f in dataclasses.fields(cls) if isinstance(f.default, float)
]


@pytest.mark.parametrize(("method", "name"), CASES, ids=[f"{m}.{n}" for m, n in CASES])
def test_every_number_of_every_method_has_its_range(method: str, name: str) -> None:
    low, least, most, high = EDGES[name]
    for value in (least, most):
        assert getattr(ALGORITHMS[method](**{name: value}), name) == value
    for value in (low, high, math.nan):
        for make in (lambda v: ALGORITHMS[method](**{name: v}), lambda v: make_algorithm(method, {name: str(v)})):
            with pytest.raises(FedsmooError, match=rf"^{name} is .*{value}.*, but must be ") as caught:
                make(value)
            assert "\n" not in str(caught.value)


def test_the_line_names_the_range() -> None:
    for make, line in (
        (lambda: FedSMOO(r=-1), "r is -1, but must be at least 0"),
        (lambda: FedSMOO(beta=0), "beta is 0, but must be above 0"),
        (lambda: make_algorithm("fedadam", {"beta1": "1"}), "beta1 is 1.0, but must be at least 0 and below 1"),
        (lambda: make_algorithm("fedcm", {"alpha": 0}), "alpha is 0.0, but must be above 0 and at most 1"),
        (lambda: FedSMOO(beta=math.inf), "beta is inf, but must be finite"),
        (lambda: FedSMOO(r="wide"), "r is 'wide', but must be a number"),  # type: ignore[arg-type]
        (lambda: FedSMOO(r=None), "r is None, but must be a number"),  # type: ignore[arg-type]
        (lambda: Relaxed(FedSMOO(), -0.1), "b is -0.1, but must be at least 0"),
        (lambda: dataclasses.replace(FedSMOO(), r=-2.0), "r is -2.0, but must be at least 0"),
    ):
        with pytest.raises(FedsmooError) as caught:
            make()
        assert str(caught.value) == line
    with pytest.raises(FedsmooError, match="unknown value of perturbation 'papr': did you mean 'paper'"):
        FedSMOO(perturbation="papr")


def test_a_method_of_ones_own_is_checked_too() -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(Algorithm):
        q: float = option(0.5, "a share", within="[0, 1]")

    assert Mine(np.float32(1)).q == 1
    with pytest.raises(FedsmooError, match=r"q is 1\.5, but must be at least 0 and at most 1"):
        Mine(1.5)


def test_a_number_per_client_is_not_looked_at() -> None:
    """Runs in one batch hold ``[C, 1]`` tensors, made anew in every round: looking into one would wait for the GPU."""
    both = stack_algorithms([FedSMOO(r=0.1), FedSMOO(r=0.2, beta=3.0)], [2, 1], torch.zeros(1))
    assert both.r.tolist() == [[pytest.approx(0.1)], [pytest.approx(0.1)], [pytest.approx(0.2)]]
    assert FedSMOO(r=torch.full((2, 1), -1.0)).r.shape == (2, 1)  # type: ignore[arg-type]
    assert FedSMOO(r=torch.zeros(2, 1, device="meta")).r.is_meta  # type: ignore[arg-type, attr-defined]
