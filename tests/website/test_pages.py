"""The pages that are made: each thing that there is has its place, and links lead where they say, also on GitHub."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest
import typer
import yaml

import fedsmoo
from benchmarks.figures import seconds
from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.cli import app
from fedsmoo.paper.standing import standings
from fedsmoo.runs.config import FIELDS

from .blocks import DOCUMENTS, ROOT


@pytest.fixture
def website(monkeypatch: pytest.MonkeyPatch) -> object:
    """Import a module of website/, as the site's build does, and forget all of them afterwards."""
    monkeypatch.syspath_prepend(str(ROOT / "website"))
    before = set(sys.modules)

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "website")):
            del sys.modules[name]


def navigation(entries: list[object]) -> list[str]:
    """All pages of a navigation."""
    out = []
    for entry in entries:
        for below in entry.values() if isinstance(entry, dict) else [entry]:
            out += navigation(below) if isinstance(below, list) else [below]
    return out


def test_every_document_has_a_place_in_the_navigation(website) -> None:
    config = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = navigation(yaml.safe_load(config)["nav"])
    assert len(set(pages)) == len(pages)
    for document in DOCUMENTS:
        if not document.startswith("docs/algorithms/"):
            assert website("links").page_of(document) in pages, f"{document}: give it a line in mkdocs.yml"


@pytest.mark.parametrize("document", [*DOCUMENTS, "ARCHITECTURE.md", "CHANGELOG.md", "results/README.md"])
def test_links_between_files_lead_to_files(document: str, website) -> None:
    links = website("links")
    text = (ROOT / document).read_text(encoding="utf-8")
    for match, path, _ in links.outside(text, document):
        assert (ROOT / path).exists(), f"{document}: {match[0]}"
        assert links.page_of(path), f"{document}: {match[0]}"


def test_links_are_rewritten_outside_of_code_only(website) -> None:
    links = website("links")
    text = "[a](docs/data.md#x) `[b](docs/data.md)` [c](https://d.e/f.md) ![g](docs/figures/round.svg) [h](#i)\n"
    text += "```\n[j](docs/data.md)\n```\n[k](examples/own_model.py) [l](examples/) [m](docs/no.md)\n"
    expected = text.replace("[a](docs/data.md#x)", "[a](data.md#x)").replace("docs/figures", "figures")
    expected = expected.replace("(examples/own_model.py)", "(source/examples/own_model.py.md)")
    assert links.rewritten(text, "index.md") == expected.replace("(examples/)", "(source/examples/index.md)")
    assert links.rewritten("[a](../../CONTRIBUTING.md#add-a-method) [b](../data.md)", "tutorials/x.md") == (
        "[a](../contributing.md#add-a-method) [b](../data.md)"
    )


def test_every_method_has_a_page_with_its_box_and_options(website) -> None:
    pages = dict(website("methods").method_pages())
    assert len(pages) == len(ALGORITHMS) + 1
    for name, cls in ALGORITHMS.items():
        page = pages[f"methods/{name}.md"]
        assert f"[{cls.__name__}]({name}.md)" in pages["methods/index.md"]
        for field in dataclasses.fields(cls):
            assert f"| `{field.name}` |" in page
        for line in (cls.__doc__ or "").splitlines()[2:]:
            assert line.strip() in page


def test_every_setting_command_and_public_name_is_in_the_reference(website) -> None:
    reference = website("reference")
    settings, python, line = reference.settings_page(), reference.python_page(), reference.commands_page()
    for name, field in FIELDS.items():
        if not name.endswith("_options"):
            assert f"| `{name}` |" in settings
            assert field.metadata["help"].split("|")[0].split("<")[0] in settings
    assert "| `lr` | number | `0.1` | local learning rate (above 0) |" in settings
    methods = {c.__name__ for c in ALGORITHMS.values()}
    for name in set(fedsmoo.__all__) - methods:
        assert f"fedsmoo.{name}" in python or name == "__version__"

    def below(command: click.Command, name: str) -> list[str]:
        if not isinstance(command, click.Group):
            return [name]
        return [path for n, c in command.commands.items() for path in below(c, f"{name} {n}")]

    for path in below(typer.main.get_command(app), "fedsmoo"):
        assert f"\n## {path}\n" in line
    assert "| `--pack` |" in line


def test_curves_are_those_of_the_results(website, tmp_path: Path) -> None:
    for path in (ROOT / "results").glob("*-cifar10-dirichlet-0.1-10of100-*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    curves, column = website("curves"), "10%-of-100 cifar10.dirichlet-0.1"
    grid = curves.measured(tmp_path)
    found = curves.curves(grid)[column]
    assert list(found) == ["FedAvg", "FedAdam", "SCAFFOLD", "FedCM", "FedDyn", "FedSAM", "MoFedSAM", "FedSMOO"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for method, curve in found.items():
        row = next(r for r in readme.splitlines() if r.startswith(f"| {method} | {curve['n']} |"))
        assert f"{curve['end']:.2f}" in row
        assert len(curve["y"]) == 100
    heat = website("heatmap").heat_map(grid)
    for method, standing in standings(grid).items():
        place = heat.partition("<th>Dirichlet 0.1</th>")[2].split("</td>")[list(found).index(method[0])]
        assert place.endswith(f">{standing.rank}<small>{standing.gap:+.1f}</small>")
        assert f'class="{"above" if standing.gap >= 0 else "below"}' in place
    assert found["FedSMOO"]["mb"] == pytest.approx(2 * found["FedAvg"]["mb"], rel=1e-3)


def test_the_readme_takes_a_minute_and_its_figure_is_what_the_script_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert f"It has {len(ALGORITHMS)} methods" in text
    assert "(docs/figures/seconds.svg)" in text
    monkeypatch.setattr(sys, "argv", ["seconds", "--check"])
    with pytest.raises(SystemExit) as ended:
        seconds.main()
    assert not ended.value.code


def test_nothing_of_the_site_comes_from_elsewhere() -> None:
    for path in [*(ROOT / "website").rglob("*.js"), *(ROOT / "website").rglob("*.css"), ROOT / "mkdocs.yml"]:
        addresses = re.findall(r"https?://[^\s\"')]+", Path(path).read_text(encoding="utf-8"))
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, path
