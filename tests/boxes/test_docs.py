"""The pages about the methods say what the methods declare."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.core import Algorithm

PAGES = Path(__file__).parents[2] / "docs" / "algorithms"


def by_label(label: str) -> Algorithm:
    return ALGORITHMS[label.strip().lower()]()


def index_rows() -> list[tuple[str, list[int]]]:
    """(method, [down, up, kept, gradients]) of every method in the index."""
    rows = []
    for line in (PAGES / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and all(cell.isdigit() for cell in cells[2:]):
            rows += [(method, [int(cell) for cell in cells[2:]]) for method in cells[1].split(",")]
    return rows


def test_index_lists_every_method_once() -> None:
    assert sorted(method.strip().lower() for method, _ in index_rows()) == sorted(ALGORITHMS)


@pytest.mark.parametrize(("method", "numbers"), index_rows())
def test_index_counts_what_a_method_declares(method: str, numbers: list[int]) -> None:
    algorithm, w = by_label(method), torch.ones(3, dtype=torch.float64)
    calls = []

    def grad(v: torch.Tensor) -> torch.Tensor:
        calls.append(v)
        return v

    down = algorithm.init(w).pick(algorithm.down)
    me = algorithm.first_contact(down).replace(**{name: torch.zeros_like(w) for name in algorithm.local})
    algorithm.direction(w, grad, down, me)
    assert numbers == [len(algorithm.down), len(algorithm.up), len(algorithm.own), len(calls)]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_page_names_every_option(name: str) -> None:
    """The page that the index links for a method mentions each of its hyper-parameters."""
    page = None
    for line in (PAGES / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        link = re.match(r"\[\w+\]\((\w+\.md)\)", cells[0])
        page = link.group(1) if link else page
        if len(cells) == 6 and name in [method.strip().lower() for method in cells[1].split(",")]:
            break
    assert page is not None
    text = (PAGES / page).read_text()
    missing = [f.name for f in dataclasses.fields(ALGORITHMS[name]) if f"`{f.name}`" not in text]
    assert missing == []
