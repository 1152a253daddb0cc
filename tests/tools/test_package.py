"""What is checked of the packages before anybody installs them: metadata and contents."""

from __future__ import annotations

import io
import re
import runpy
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fedsmoo.sweeps.bases import EXPERIMENTS

ROOT = Path(__file__).parents[2]
METADATA = """Metadata-Version: 2.4
Name: fedsmoo
Version: {version}
Description-Content-Type: text/markdown
Provides-Extra: all

Words.
"""
TOP = ["LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "setup.py", "PKG-INFO", "setup.cfg",
       "MANIFEST.in"]  # fmt: skip


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "package.py"))


@pytest.fixture
def contents(script: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What the wheel and the sdist should hold, by name."""
    modules = [n.removeprefix("src/") for n in script["sources"]() if n.startswith("src/fedsmoo/")]
    places = [ROOT / "results", *(p for p in (ROOT / "results").iterdir() if p.name in EXPERIMENTS)]
    results = [str(p.relative_to(ROOT / "results")) for place in places for p in place.glob("*-seed*.json")]
    assert any(name.startswith("sensitivity/") for name in results)
    assert len(modules) > 200
    assert len(results) > 100
    about = [f"fedsmoo-0.1.0.dist-info/{n}" for n in ("licenses/LICENSE", "entry_points.txt", "RECORD", "METADATA")]
    wheel = [*modules, *(f"fedsmoo/paper/results/{n}" for n in results), *about]
    return wheel, [*TOP, *(f"src/{n}" for n in modules), *(f"results/{n}" for n in results)]


def packed(folder: Path, wheel: list[str], sdist: list[str], metadata: str) -> tuple[Path, Path]:
    """Write packages with these files, all of them empty but for the metadata."""
    with zipfile.ZipFile(folder / "fedsmoo-0.1.0-py3-none-any.whl", "w") as z:
        for name in wheel:
            z.writestr(name, metadata if name.endswith("/METADATA") else "")
    with tarfile.open(folder / "fedsmoo-0.1.0.tar.gz", "w:gz") as t:
        for name in sdist:
            t.addfile(tarfile.TarInfo(f"fedsmoo-0.1.0/{name}"), io.BytesIO())
    return folder / "fedsmoo-0.1.0.tar.gz", folder / "fedsmoo-0.1.0-py3-none-any.whl"


def test_packages_that_hold_what_they_should_pass(script: dict[str, Any], contents: Any, tmp_path: Path) -> None:
    script["check"](*packed(tmp_path, *contents, METADATA.format(version="0.1.0")))


def fails(script: dict[str, Any], made: tuple[Path, Path], why: str) -> None:
    with pytest.raises(SystemExit, match=why):
        script["check"](*made)


def test_packages_that_hold_too_little_or_too_much_are_refused(
    script: dict[str, Any], contents: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    (wheel, sdist), right = contents, METADATA.format(version="0.1.0")
    for name in ("fedsmoo/commands/demo.toml", "fedsmoo/py.typed", "fedsmoo/pages/static/page.css"):
        fails(script, packed(tmp_path, [n for n in wheel if n != name], sdist, right), f"the wheel lacks {name}")
    result = next(n for n in wheel if "/paper/results/" in n)
    fails(script, packed(tmp_path, [n for n in wheel if n != result], sdist, right), "the wheel lacks fedsmoo/paper")
    fails(script, packed(tmp_path, [*wheel, "tests/a.py"], sdist, right), "the wheel should not hold tests/a.py")
    few = [n for n in wheel if not n.endswith("LICENSE")]
    fails(script, packed(tmp_path, few, sdist, right), "the wheel has no dist-info/licenses/LICENSE")
    fails(script, packed(tmp_path, wheel, sdist[1:], right), "the sdist lacks LICENSE")
    fails(script, packed(tmp_path, wheel, [*sdist, "tests/a.py"], right), "the sdist should not hold tests/a.py")


def test_metadata_that_an_index_would_refuse_is_refused(
    script: dict[str, Any], contents: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    right = METADATA.format(version="0.1.0")
    fails(script, packed(tmp_path, *contents, METADATA.format(version="0.1.1")), "do not agree")
    fails(script, packed(tmp_path, *contents, right.replace("Provides-Extra: all\n", "")), "no extra 'all'")
    fails(script, packed(tmp_path, *contents, right.replace("text/markdown", "text/plain")), "README")
    with pytest.raises(ExceptionGroup, match="metadata") as wrong:
        script["check"](*packed(tmp_path, *contents, METADATA.format(version="zero")))
    assert "version" in str(wrong.value.exceptions)


def test_a_description_with_links_that_lead_nowhere_is_refused(
    script: dict[str, Any], contents: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    right, readme = METADATA.format(version="0.1.0"), (ROOT / "README.md").read_text(encoding="utf-8")
    fails(script, packed(tmp_path, *contents, right.replace("Words.", "[a](docs/a.md)")), "links to docs/a.md")
    shown = script["for_an_index"](readme)
    script["check"](*packed(tmp_path, *contents, right.replace("Words.", shown)))
    assert "*ResNet-18 trained by FedSMOO, 10 of 100 clients in a round, on one H200.*" in shown
    assert len(re.findall(r"^## ", readme, re.M)) == len(re.findall(r"^## ", shown, re.M)) + 1  # where to go
    text = "See [a](b.md) and [c](https://d.e).\n\n## Where to go\n\n| [f](g.md) |\n\nH.\n"
    assert script["for_an_index"](text) == "See a and [c](https://d.e).\n\nH.\n"


def test_the_extra_all_is_all_that_users_may_want() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(everything.removeprefix("fedsmoo[").removesuffix("]").split(",")) == {*extras} - {"all", "dev", "docs"}


def test_a_trial_takes_nothing_of_this_checkout_along(script: dict[str, Any], tmp_path: Path) -> None:
    env = script["environment"](tmp_path, tmp_path / "venv" / "bin" / "python")
    assert "PYTHONPATH" not in env
    assert env["HOME"] == str(tmp_path / "home")
    assert not list((tmp_path / "home").iterdir())
    assert str(ROOT) not in env["PATH"]


def test_without_an_extra_the_page_is_refused_and_with_all_every_extra_is_used(script: dict[str, Any]) -> None:
    usual, plain, everything = ({" ".join(w): (s, c) for w, s, c in script["trials"](e)} for e in ("report", "", "all"))
    page = "report runs/demo --out page.html"
    assert usual.keys() == plain.keys() < everything.keys()
    assert (usual[page][1], plain[page][1]) == (0, 2)
    assert plain[page][0].endswith("pip install 'fedsmoo[report]'")
    said, _ = everything["doctor"]  # the last word on a command counts
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*said.strip().split(", ")} == {*extras} - {"all", "dev", "docs"}
