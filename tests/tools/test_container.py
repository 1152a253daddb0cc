"""The Containerfile: its shell is shell, it copies what is there, and it ends as a user without root."""

from __future__ import annotations

import fnmatch
import json
import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest
from commands.conftest import Call, call

__all__ = ["call"]  # a fixture of other tests

ROOT = Path(__file__).parents[2]
KNOWN = {"ARG", "FROM", "WORKDIR", "RUN", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD"}


TOOL = runpy.run_path(str(ROOT / "tools" / "container.py"))
STEPS = TOOL["instructions"]((ROOT / "Containerfile").read_text())
LAST = STEPS[max(k for k, (word, _) in enumerate(STEPS) if word == "FROM") :]


def test_all_instructions_are_known_and_all_shell_is_shell() -> None:
    assert {word for word, _ in STEPS} == KNOWN
    for shell in (rest for word, rest in STEPS if word == "RUN"):
        subprocess.run(["sh", "-n", "-c", shell], check=True)


def test_it_copies_what_is_there_and_what_the_ignore_file_lets_through() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ignored[0] == "*"
    through = {line[1:] for line in ignored if line.startswith("!")}
    copied = [name for word, rest in STEPS if word == "COPY" and "--from" not in rest for name in rest.split()[:-1]]
    assert {*copied} == through
    for name in copied:
        assert (ROOT / name).exists(), name
    manifest = re.findall(r"(?<=include )(.*)", (ROOT / "MANIFEST.in").read_text())
    assert all(any(fnmatch.fnmatch(part, f"{n}*") for n in copied) for line in manifest for part in line.split())


def test_what_comes_into_the_build_are_sources_and_results_of_single_runs() -> None:
    known = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], check=True, capture_output=True, text=True
    ).stdout.split()
    names = TOOL["let_through"](
        [*known, "src/fedsmoo/__pycache__/cli.pyc"], (ROOT / ".dockerignore").read_text().split()
    )
    assert {n for n in known if n.startswith("src/")} <= {*names}
    assert {n for n in known if re.fullmatch(r"results/[^/]*-seed[^/]*\.json", n)} <= {*names}
    assert not [n for n in names if n.startswith("results/") and n.count("/") > 1]
    assert not [n for n in names if "__pycache__" in n or n.startswith(("tests/", "docs/", ".github/"))]


def test_docker_is_told_the_name_of_the_file_wherever_it_builds() -> None:
    for name in ("Containerfile", "docs/clusters.md", "examples/clusters/kubernetes.yaml"):
        for line in re.findall(r"docker build .*", (ROOT / name).read_text()):
            assert " -f Containerfile " in line, name


def test_it_takes_the_torch_that_is_tested_and_knows_two_variants(tmp_path: Path) -> None:
    torch = dict(rest.split("=") for word, rest in STEPS if word == "ARG")["TORCH"]
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"][0]
    assert wanted.endswith(f"<={torch}")
    assert f"torch=={torch}\n" in (ROOT / "Makefile").read_text()
    choice = next(rest for word, rest in LAST if word == "RUN" and rest.startswith("case"))
    for name in ("pip", "apt-get", "rm"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    for variant, code, said in (("cpu", 0, "--index-url"), ("cuda", 0, f"install torch=={torch}\n"), ("tpu", 1, "tpu")):
        env = {"PATH": str(tmp_path), "VARIANT": variant, "TORCH": torch}
        done = subprocess.run(["/bin/sh", "-c", choice], env=env, capture_output=True, text=True)
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done


def test_it_runs_the_demo_as_a_user_without_root(call: Call) -> None:
    said = dict(LAST)
    assert int(said["USER"]) > 0  # a number: Kubernetes cannot tell whether a name is root's
    order = [word for word, _ in LAST]
    assert order.index("USER") > max(k for k, word in enumerate(order) if word == "RUN")
    (program,), words = json.loads(said["ENTRYPOINT"]), json.loads(said["CMD"])
    assert program == "fedsmoo"
    assert call(*words, "--help").code == 0
    made = [rest for word, rest in LAST if word == "RUN"]
    assert any(f"useradd --create-home --uid {said['USER']} fedsmoo" in rest for rest in made)
    assert any(f"chown -R fedsmoo:fedsmoo {said['WORKDIR']}" in rest for rest in made)


@pytest.mark.parametrize(
    "line", [r for r in (ROOT / "Containerfile").read_text().splitlines() if "docker run --rm" in r]
)
def test_the_commands_in_its_head_are_commands(line: str, call: Call) -> None:
    words = line.partition("#")[2].partition("  #")[0].split()
    after = words[next(k for k, w in enumerate(words) if w.startswith("fedsmoo")) + 1 :]
    assert call(*(after or ["demo"]), "--help").code == 0


@pytest.mark.parametrize("name", ["docker", "buildah"])
def test_the_image_is_built_and_its_demo_run_by_what_there_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/said\n[ "$1" != from ] || echo made-1\n')
    (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    TOOL["build_and_run"](name, "cpu", "3.11")
    build = "build --file Containerfile --build-arg VARIANT=cpu --build-arg PYTHON=3.11 --tag fedsmoo ."
    demo = "demo --rounds 3 --seeds 0"
    run = {
        "docker": [f"run --rm fedsmoo {demo}"],
        "buildah": ["from fedsmoo", f"run made-1 -- fedsmoo {demo}", "rm made-1"],
    }
    assert (tmp_path / "said").read_text().splitlines() == [build, *run[name]]
