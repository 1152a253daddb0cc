"""Hyper-parameters that a class writes and Python does not take are said with their line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fedsmoo import Dirichlet, FedAvg, FedProx, FedsmooError, option
from fedsmoo.core.hyper.options import ignored_values
from fedsmoo.core.user_code import with_options
from fedsmoo.runs.build import algorithm_class


class Undecorated(FedAvg):
    mu: float = option(0.5, "strength")


class OtherDefault(FedProx):
    mu: float = 0.5


@dataclass(frozen=True)
class WithoutHint(FedProx):
    mu = 0.5


class Below(WithoutHint):
    """The line to mend is in the class above."""


class Even(Dirichlet):
    u: float = 9.0


@dataclass(frozen=True)
class Taken(FedProx):
    mu: float = 0.5
    lr_server = 1.0  # what it is anyway


class Plain(Taken):
    """Writes no hyper-parameter of its own."""


@pytest.mark.parametrize(
    ("cls", "line", "says"),
    [
        (Undecorated, "mu: float = option(", "in Undecorated: mu is not taken: write @dataclass(frozen=True) above"),
        (OtherDefault, "mu: float = 0.5", "in OtherDefault: mu = 0.5 is not taken, it is 0.01: write it with its type"),
        (WithoutHint, "mu = 0.5", "in WithoutHint: mu = 0.5 is not taken, it is 0.01"),
        (Below, "mu = 0.5", "in WithoutHint: mu = 0.5 is not taken, it is 0.01"),
        (Even, "u: float = 9.0", "in Even: u = 9.0 is not taken, it is 0.1"),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else "",
)
def test_what_is_not_taken_is_refused_with_its_line(cls: type, line: str, says: str) -> None:
    source = Path(__file__).read_text().splitlines()
    at = next(i for i, text in enumerate(source, 1) if text.strip().startswith(line))
    with pytest.raises(FedsmooError) as e:
        cls()
    assert f"test_options.py:{at} {says}" in str(e.value)


def test_what_is_taken_is_not_refused() -> None:
    assert (Taken().mu, Plain().mu, Plain(mu=0.2).mu) == (0.5, 0.5, 0.2)
    assert ignored_values(Taken) == ignored_values(Plain) == ()


def test_it_is_said_before_an_option_is_called_unknown(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text('from fedsmoo import FedAvg, option\nclass Mine(FedAvg):\n    mu: float = option(1, "")\n')
    with pytest.raises(FedsmooError, match=r"mine.py:3 in Mine: mu is not taken"):
        algorithm_class(f"{file}:Mine")


def test_text_for_a_truth_value_of_a_users_function_is_refused() -> None:
    """A file's ``flag = "no"`` reached the function as text, which is true."""

    def loss(out: object, y: object, flag: bool = False, by: object = 1) -> None: ...

    with pytest.raises(FedsmooError, match="flag of the loss is 'no', but must be true or false, without quotes"):
        with_options(loss, "the loss", ("out", "y"), {"flag": "no"})
    assert with_options(loss, "the loss", ("out", "y"), {"flag": True, "by": "two"})
