"""Numbers that a method cannot work with are refused where the method is made, whoever makes it."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsmoo.algorithms import ALGORITHMS, FedSMOO, Median, Relaxed
from fedsmoo.algorithms.around import Around
from fedsmoo.algorithms.quantised import Quantised
from fedsmoo.core import Algorithm, FedsmooError, option
from fedsmoo.engines.steps.stack import stack
from fedsmoo.runs.build import make_algorithm
from fedsmoo.runs.origin.objects import method_settings

# option (or method.option, where its range is another): what is too low,
# the least and the most that are allowed, what is too high
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
    "feddc.alpha": (-1e-9, 0.0, 1e9, math.inf),
    "fedacg.lam": (-1e-9, 0.0, 0.999, 1.0),
    "fednsam.lam": (-1e-9, 0.0, 0.999, 1.0),
    "lam": (-1e-9, 0.0, 1e9, math.inf),
    "fedwmsam.alpha": (0.0, 1e-9, 0.999, 1.0),
    "fedswa.rho": (-1e-9, 0.0, 1.0, 1.001),
    "fedmoswa.rho": (-1e-9, 0.0, 1.0, 1.001),
    "fedmoswa.gamma": (0.0, 1e-9, 1.0, 1.001),
    "head_share": (-1e-9, 0.0, 1.0, 1.001),
    "fedlc.tau": (-1e-9, 0.0, 1e9, math.inf),
    "fedntd.beta": (-1e-9, 0.0, 1e9, math.inf),
    "fedgmt.alpha": (-1e-9, 0.0, 0.999, 1.0),
    "gamma": (-1e-9, 0.0, 1e9, math.inf),
    "q": (-1e-9, 0.0, 1e9, math.inf),
    "rho_server": (-1e-9, 0.0, 1e9, math.inf),
    "eps": (0.0, 1e-9, 1e9, math.inf),
    "trim": (-1e-9, 0.0, 0.499, 0.5),
    "attackers": (-1e-9, 0.0, 0.499, 0.5),
    "nu": (0.0, 1e-9, 1e9, math.inf),
    "bound": (0.0, 1e-9, 1e9, math.inf),
    "lr_own": (0.0, 1e-9, 1e9, math.inf),
}
CASES = [
    (name, f.name) for name, cls in ALGORITHMS.items() for f in dataclasses.fields(cls) if isinstance(f.default, float)
]


@pytest.mark.parametrize(("method", "name"), CASES, ids=[f"{m}.{n}" for m, n in CASES])
def test_every_number_of_every_method_has_its_range(method: str, name: str) -> None:
    low, least, most, high = EDGES.get(f"{method}.{name}") or EDGES[name]
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
    both = stack([FedSMOO(r=0.1), FedSMOO(r=0.2, beta=3.0)], [2, 1], torch.zeros(1))
    assert both.r.tolist() == [[pytest.approx(0.1)], [pytest.approx(0.1)], [pytest.approx(0.2)]]
    assert FedSMOO(r=torch.full((2, 1), -1.0)).r.shape == (2, 1)  # type: ignore[arg-type]
    assert FedSMOO(r=torch.zeros(2, 1, device="meta")).r.is_meta  # type: ignore[arg-type, attr-defined]


# A hyper-parameter of each kind: what it may not be, what it must be, and what it may be.
KINDS = {
    bool: (["no", "yes", "true", 0, 1, 0.0, None], "true or false", [True, False, np.bool_(True)]),
    float: (["0.5", "none", True, None, [0.5]], "a number", [0.25, np.float32(0.25), torch.full((2, 1), 0.25)]),
    str: ([1, True, None], "text", []),
}
FIELDS = [
    (cls, f.name, type(f.default))
    for cls in (*ALGORITHMS.values(), Relaxed, Quantised)
    for f in dataclasses.fields(cls)
    if type(f.default) in KINDS
]


@pytest.mark.parametrize(("cls", "name", "kind"), FIELDS, ids=[f"{c.__name__}.{n}" for c, n, _ in FIELDS])
def test_a_hyper_parameter_is_of_its_field_s_type(cls: type[Algorithm], name: str, kind: type) -> None:
    wrong, must, right = KINDS[kind]
    for value in wrong:
        with pytest.raises(FedsmooError, match=rf"^{name} is .*, but must be {must}") as caught:
            cls(**{name: value})
        assert "\n" not in str(caught.value)
    for value in right:
        assert getattr(cls(**{name: value}), name) is value


@dataclasses.dataclass(frozen=True)
class Mine(Algorithm):
    """A user's fields: a whole default of a number, a number that may be none, a whole number, no type at all."""

    a: float = 1
    b: float | None = None
    k: int = option(3, "how many", within="[1, 9]")
    on: Any = False
    either: float | str = "auto"


def test_fields_of_a_user_s_method_have_their_types() -> None:
    mine = Mine(a=2, b=0.5, k=4.0, on=True, either=0.1)
    assert mine.options() == {"a": 2, "b": 0.5, "k": 4.0, "on": True, "either": 0.1}
    assert Mine().b is None
    for wrong, says in (
        ({"a": "0.1"}, "a is '0.1', but must be a number"),
        ({"b": "0.1"}, "b is '0.1', but must be a number"),
        ({"k": 2.5}, "k is 2.5, but must be a whole number"),
        ({"k": math.inf}, "k is inf, but must be a whole number"),
        ({"k": 10}, "k is 10, but must be at least 1 and at most 9"),
        ({"on": "no"}, "on is 'no', but must be true or false"),
    ):
        with pytest.raises(FedsmooError) as caught:
            Mine(**wrong)
        assert str(caught.value) == says


def test_words_on_the_command_line_convert_by_the_field_s_type(tmp_path: Path) -> None:
    assert make_algorithm("fedsmoo", {"sam": "no", "correct": "on"}).options()["sam"] is False
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom fedsmoo import FedAvg\n@dataclass(frozen=True)\nclass Mine(FedAvg):\n"
        "    a: float = 1\n    b: float | None = None\n    k: int = 3\n"
    )
    options = make_algorithm(f"{file}:Mine", {"a": "0.25", "b": "0.5", "k": "4"}).options()
    assert (options["a"], options["b"], options["k"]) == (0.25, 0.5, 4)
    assert make_algorithm(f"{file}:Mine", {"b": "none"}).options()["b"] is None


def test_hyper_parameters_are_given_by_name() -> None:
    """Whoever writes FedSMOO(0.1, 10) means r = 0.1 and beta = 10, but beta comes first."""
    with pytest.raises(FedsmooError, match=r"by name: write FedSMOO\(beta=\.\.\., r=\.\.\., regularise=\.\.\., sam="):
        FedSMOO(0.1, 10)
    for cls in [cls for cls in ALGORITHMS.values() if not issubclass(cls, Around)]:
        with pytest.raises(FedsmooError, match=f"{cls.__name__} takes its hyper-parameters by name"):
            cls(0.5)
    assert Relaxed(FedSMOO(r=0.2), 0.3).options() == {"inner": FedSMOO(r=0.2), "b": 0.3}


def test_a_method_inside_another_is_named() -> None:
    made = make_algorithm("median", {"inner": "fedsmoo"})
    assert made == Median(FedSMOO())
    assert method_settings(made) == {"algorithm": "median", "algorithm_options": {"inner": "fedsmoo"}}
    assert method_settings(Median(FedSMOO(r=0.3)))["algorithm"].startswith("python:")  # no setting says its radius
    with pytest.raises(FedsmooError, match="unknown algorithm 'fedsmo': did you mean 'fedsmoo'"):
        make_algorithm("median", {"inner": "fedsmo"})


def test_a_method_of_ones_own_may_take_its_own_in_their_places() -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(Algorithm):
        first: float = option(1.0, "of my own")

    @dataclasses.dataclass(frozen=True)
    class Decay(FedSMOO):
        a: float = 1.0

    assert Mine(3.0).first == 3.0
    assert (copy.deepcopy(Decay(a=3.0)), dataclasses.replace(Decay(a=3.0), r=0.5).r) == (Decay(a=3.0), 0.5)
    with pytest.raises(FedsmooError, match=r"Decay takes its hyper-parameters by name: write Decay\(beta="):
        Decay(3.0)  # which would be beta
