"""Curves of several seeds in one line, and smoothed ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from matplotlib.figure import Figure

from fedsmoo import Config
from fedsmoo.runs.record import Record
from fedsmoo.runs.results.curves import draw_curves, histories_of


def history(values: list[float | None], every: int = 1) -> list[Record]:
    """Rounds evaluated every so often, led by an error."""
    tested = {every * (k + 1): {"mse": v} for k, v in enumerate(values)}
    return [
        Record(t, None, None, 1.0, 0.1, 0.1, [0], 10, 10, 1.0, 0.0, metrics=tested.get(t, {}))
        for t in range(1, every * len(values) + 1)
    ]


def test_seeds_are_averaged_round_by_round() -> None:
    """Also where one was evaluated more often, or found no number in between."""
    axes = Figure().add_subplot()
    dense, seldom = history([float(k) for k in range(1, 7)]), history([2.0, 4.0, 6.0], 2)
    gap = history([1.0, 2.0, None, 4.0, 5.0, 6.0])
    draw_curves(axes, {"a": [dense, seldom], "b": [dense, gap]})
    a, b = axes.get_lines()
    assert np.array_equal(np.array(a.get_data()), [[2, 4, 6], [2.0, 4.0, 6.0]])
    assert np.array_equal(np.array(b.get_data()), [[1, 2, 4, 5, 6], [1.0, 2.0, 4.0, 5.0, 6.0]])


def test_a_window_is_in_rounds() -> None:
    """Of a curve with a point every tenth round, one of thirty rounds holds three points: 1/4, 1/2 and 1/4."""
    axes = Figure().add_subplot()
    draw_curves(axes, {"a": [history([0.0, 0.0, 4.0, 0.0, 0.0], 10)]}, smooth=30)
    assert np.allclose(axes.get_lines()[0].get_ydata(), [0.0, 1.0, 2.0, 1.0, 0.0])


def test_a_seed_without_any_number_leaves_no_line_to_smooth() -> None:
    axes = Figure().add_subplot()
    draw_curves(axes, {"a": [history([1.0, 2.0]), history([None, None])], "b": [history([3.0, 3.0])]}, smooth=9)
    assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[], [3.0, 3.0]]


def test_results_of_other_settings_are_no_seeds() -> None:
    def result(label: str, **settings: object) -> SimpleNamespace:
        return SimpleNamespace(label=label, history=history([1.0]), config=Config(**settings))

    prox = [result("FedProx", algorithm="fedprox", algorithm_options={"mu": mu}) for mu in (0.1, 0.2)]
    plain = [result("FedAvg", seed=s, engine=e) for s, e in ((0, "serial"), (1, "vmap"))]
    found = histories_of([*plain, *prox, result("SCAFFOLD", lr=0.1), result("SCAFFOLD", lr=0.5)])
    assert {name: len(each) for name, each in found.items()} == {
        "FedAvg": 2, "FedProx mu=0.1": 1, "FedProx mu=0.2": 1, "SCAFFOLD lr=0.1": 1, "SCAFFOLD lr=0.5": 1
    }  # fmt: skip
