"""The pages about the methods say what the methods declare."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.core import Algorithm, FedsmooError
from fedsmoo.core.contract.inputs import make_inputs
from fedsmoo.runs.build import make_algorithm

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "algorithms"


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
    algorithm = by_label(method)
    x = make_inputs(algorithm, 0)
    algorithm.direction(x.w, x.grad, x.down, x.me)
    long = [[n for n in names if n not in algorithm.scalars] for names in (algorithm.down, algorithm.up, algorithm.own)]
    assert numbers == [*map(len, long), len(x.grad.losses)]


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


def block(document: str, name: str) -> str:
    """The Python block of a document that defines a class."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.S | re.M)
    return next(text for text in blocks if f"class {name}(" in text)


def bare(text: str) -> str:
    """A class without docstring and types of functions, in one spelling."""
    tree = next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef))
    if ast.get_docstring(tree):
        del tree.body[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in node.args.args:
                argument.annotation = None
    return ast.unparse(tree)


def test_all_of_fedcm_is_what_the_readme_says() -> None:
    assert bare(block("README.md", "FedCM")) == bare(inspect.getsource(ALGORITHMS["fedcm"]))


def test_the_method_of_the_guide_refuses_what_its_formula_does_not_mean(tmp_path: Path) -> None:
    (tmp_path / "my_method.py").write_text(block("CONTRIBUTING.md", "FedDecay"))
    spec = f"{tmp_path / 'my_method.py'}:FedDecay"
    assert make_algorithm(spec, {"a": "0.5"}).options()["a"] == 0.5
    with pytest.raises(FedsmooError, match=r"a is -1\.0, but must be at least 0"):
        make_algorithm(spec, {"a": -1})
