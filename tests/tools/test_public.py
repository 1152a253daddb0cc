"""What the public sees of the repository: workflows that call make targets that exist, forms, hooks, security."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsmoo.cli import COMMANDS, READING

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.M))
VARIABLES = set(re.findall(r"\$\((?:if \$\()?([A-Z]+)\)", MAKEFILE))
PINNED = re.compile(r"([\w.-]+/[\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)")


def read(path: Path) -> dict[str, Any]:
    """Read a workflow; to YAML ``on`` is a truth value."""
    content = yaml.safe_load(path.read_text())
    return {"on" if key is True else key: value for key, value in content.items()}


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def made(path: Path) -> list[list[str]]:
    """Return the words after ``make`` of every step that calls it."""
    return [step["run"].split()[1:] for step in steps(path) if step.get("run", "").startswith("make ")]


def test_there_are_workflows_for_tests_docs_wheels_and_releases() -> None:
    assert [p.stem for p in WORKFLOWS] == ["docs", "release", "tests", "wheels"]
    called = {words[0] for path in WORKFLOWS for words in made(path)}
    assert called >= {
        "install",
        "test",
        "docs",
        "wheel",
        "release-check",
        "test-deploy",
        "drills",
        "container",
        "lint-public",
    }


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_a_workflow_is_whole_and_names_targets_and_variables_that_exist(path: Path) -> None:
    workflow = read(path)
    assert {"name", "on", "permissions", "jobs"} <= workflow.keys()
    assert workflow["permissions"] == {"contents": "read"}  # jobs ask for more where they need it
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert set(job.get("needs", "").split()) <= workflow["jobs"].keys()
    for target, *given in made(path):
        assert target in TARGETS, target
        assert {word.partition("=")[0] for word in given} <= VARIABLES | {"PYTHON"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_a_workflow_runs_shell_that_no_stranger_writes(path: Path) -> None:
    for step in steps(path):
        assert ("run" in step) != ("uses" in step)
        subprocess.run(["sh", "-n", "-c", step.get("run", "")], check=True)
        for expression in re.findall(r"\$\{\{(.*?)\}\}", step.get("run", "")):
            raise AssertionError(f"{expression} in a shell: a stranger's words would be run")


def test_actions_are_commits_the_same_everywhere_beside_the_version_they_are() -> None:
    lines = [line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    found = [PINNED.fullmatch(line.partition("uses: ")[2]) for line in lines]
    assert all(found), lines
    pins = {match.groups() for match in found if match}
    assert len(pins) == len({name for name, *_ in pins}) == 7


def test_the_files_that_workflows_name_are_there() -> None:
    for step in (s for path in WORKFLOWS for s in steps(path)):
        named = re.findall(
            r"\b[\w./-]+\.(?:py|toml)\b", " ".join([step.get("run", ""), *map(str, step.get("with", {}).values())])
        )
        assert all((ROOT / name).is_file() for name in named), named
        if "-artifact@" in step.get("uses", "") and "pages" not in step["uses"]:
            assert step["with"]["path"] == "dist/"  # where tools/package.py leaves the packages
    assert 'default=ROOT / "dist"' in (ROOT / "tools/package.py").read_text()


def test_the_site_that_is_published_is_where_it_was_built() -> None:
    (upload,) = (s for s in steps(ROOT / ".github/workflows/docs.yml") if "upload-pages-artifact" in s.get("uses", ""))
    built = re.search(r"^site_dir: (.*)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert built is not None
    assert upload["with"]["path"] == built[1]


def test_no_checkout_keeps_a_credential() -> None:
    for step in (s for path in WORKFLOWS for s in steps(path) if s.get("uses", "").startswith("actions/checkout")):
        assert step["with"]["persist-credentials"] is False


def test_every_python_that_is_promised_is_tested() -> None:
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    promised = [c.rpartition(" ")[2] for c in said if re.search(r":: 3\.\d+$", c)]
    for name, job in (("tests", "test"), ("wheels", "wheel")):
        assert read(ROOT / f".github/workflows/{name}.yml")["jobs"][job]["strategy"]["matrix"]["python"] == promised


def test_the_hooks_are_the_linters_of_make_lint() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [" ".join(hook["entry"].replace(".venv/bin/", "").split()[:2]) for hook in repo["hooks"]]
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert recipe is not None
    lint = [re.sub(r" (\.|--check)", "", line.strip().replace("$(BIN)/", "")) for line in recipe[1].splitlines()]
    assert hooks == lint
    assert all(hook["language"] == "system" and hook["id"] and hook["name"] for hook in repo["hooks"])


def test_the_forms_are_forms() -> None:
    forms = [p for p in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if p.stem != "config"]
    assert len(forms) == 2
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= form.keys()
        ids = [part["id"] for part in form["body"]]
        assert len({*ids}) == len(ids)
        for part in form["body"]:
            assert part["type"] in ("input", "textarea", "checkboxes", "dropdown", "markdown")
            assert part["attributes"]["label"]
        assert any(part.get("validations", {}).get("required") for part in form["body"])
        for name in re.findall(r"`fedsmoo (\w+)", path.read_text()):
            assert name in COMMANDS


def test_a_pull_request_is_asked_for_targets_that_exist() -> None:
    text = (ROOT / ".github/PULL_REQUEST_TEMPLATE.md").read_text()
    assert set(re.findall(r"`make ([\w-]+)", text)) <= TARGETS


def test_security_draws_the_line_where_the_program_does() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "(docs/trust.md)" in text
    listed = re.search(r"\(`runs`.*?\)", text, re.S)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[0])) == set(READING)


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "GOVERNANCE.md"])
def test_links_lead_somewhere(name: str) -> None:
    for place in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / name).read_text()):
        assert (ROOT / place).exists(), place
