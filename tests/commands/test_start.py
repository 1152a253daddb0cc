"""The first seconds: what is imported when, and Ctrl-C meanwhile."""

from __future__ import annotations

import ast
import importlib
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from patience import PATIENCE, ended

import fedsmoo
from fedsmoo import cli, core

ROOT = Path(__file__).parents[2]
SLOW = "import sys, time\nsys.stderr.write('importing\\n')\nsys.stderr.flush()\ntime.sleep(3600)\n"


def starts() -> dict[str, list[str]]:
    """The ways to start the program, the second as an installed script does it."""
    place = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["fedsmoo"]
    module, _, function = place.partition(":")
    script = f"import sys\nfrom {module} import {function}\nsys.exit({function}())"
    return {"python -m": ["-m", "fedsmoo"], "script": ["-c", script]}


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
@pytest.mark.parametrize("way", ["python -m", "script"])
@pytest.mark.parametrize(("package", "asked"), [("torch", ["show", "fedavg"]), ("typer", ["--version"])])
def test_ctrl_c_during_the_imports_shows_no_traceback(way: str, package: str, asked: list[str], tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").write_text(SLOW)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"}
    words = [sys.executable, *starts()[way], *asked]

    def heed() -> None:  # a shell in the background has its children ignore the signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    with ended(process):
        assert process.stderr is not None
        assert process.stderr.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE)
    assert error == ""
    assert process.returncode == -signal.SIGINT  # which a shell says as 130, and stops a loop for


def test_ctrl_c_before_a_command_begins_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "tree", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 130


def test_memory_that_runs_out_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def tree() -> None:
        raise MemoryError("Unable to allocate 7 TiB")

    monkeypatch.setattr(cli, "tree", tree)
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said == "fedsmoo: memory ran out: Unable to allocate 7 TiB; ask for less, such as fewer clients\n"


def test_ctrl_c_is_a_keyboard_interrupt_again_once_all_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsmoo.__main__ import main

    seen = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(cli, "main", lambda: seen.append(signal.getsignal(signal.SIGINT)))
        main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.default_int_handler]


def test_importing_the_package_does_not_import_pytorch() -> None:
    code = "import sys, fedsmoo; assert 'torch' not in sys.modules; fedsmoo.FedAvg; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=True)


@pytest.mark.parametrize("package", [fedsmoo, core], ids=lambda p: p.__name__)
def test_every_public_name_is_what_type_checkers_are_told(package: ModuleType) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom)
            for alias in node.names}  # fmt: skip
    assert sorted(told) == sorted(set(package.__all__) - {"__version__"})
    for name, module in told.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name), name
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'FedNothing'"):
        _ = package.FedNothing


def test_the_package_shows_its_public_names_and_modules() -> None:
    assert set(fedsmoo.__all__) <= set(dir(fedsmoo))
    assert fedsmoo.runs.config.Config is fedsmoo.Config


FORBID = """
import sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in forbidden:
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Forbid())
"""
HELP = """
forbidden = {"torch", "numpy", "pandas", "matplotlib", "scipy", "sklearn", "plotly", "PIL", "safetensors"}
import io, os
from contextlib import redirect_stdout
import click, typer
from fedsmoo.cli import app, main

def asked(*words):
    out = io.StringIO()
    with redirect_stdout(out):
        try:
            main(list(words))
        except SystemExit as e:
            assert not e.code, (words, e.code)
    return out.getvalue()

def commands(group, before=()):
    for name, command in group.commands.items():
        yield (*before, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))

assert asked("--version").startswith("fedsmoo ")
assert "Train one method" in asked("--help")
every = dict(commands(typer.main.get_command(app)))
assert ("run",) in every and ("data", "split") in every and ("analyse", "hessian") in every
for words, command in every.items():
    shown = " ".join(asked(*words, "--help").replace("│", " ").split())
    for argument in (p for p in command.params if isinstance(p, click.Argument)):
        assert argument.help, (words, argument.name)
        assert argument.help.split()[0] in shown, (words, argument.name)
sys.argv[0] = "fedsmoo"
for line, count, completed in (("fedsmoo ru", 1, "run"), ("fedsmoo run --alg", 2, "--algorithm"),
                               ("fedsmoo analyse hes", 2, "hessian")):
    os.environ |= {"_FEDSMOO_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(count)}
    assert completed in asked().split(), line
del os.environ["COMP_WORDS"], os.environ["COMP_CWORD"]
os.environ |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "COLUMNS": "40"}
for shell in ("zsh", "fish"):
    for line, completed in (("fedsmoo ru", "run"), ("fedsmoo run --alg", "--algorithm"),
                            ("fedsmoo run --engine vm", "vmap")):
        os.environ |= {"_FEDSMOO_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
        answer = asked()
        assert completed in answer.replace('"', " ").split(), (shell, line, answer)
        assert len(answer.splitlines()) == (2 if line.endswith("ru") else 1), answer  # run and runs
"""
RUN = """
import sys
forbidden = {"pandas", "matplotlib", "scipy", "sklearn", "plotly", "PIL", "sympy"}
from fedsmoo.cli import main
words = ["--model", "softmax", "--rounds", "1", "--cohort", "2", "--local-steps", "1", "--device", "cpu"]
for dataset in ("synthetic(0.5,0.5)", "digits"):
    try:
        main(["run", "--dataset", dataset, *words, "--out", f"{sys.argv[1]}/{dataset}"])
    except SystemExit as e:
        assert not e.code, e.code
assert not (found := forbidden & set(sys.modules)), found
"""


def test_help_and_completion_import_nothing_heavy() -> None:
    """Also, every argument is explained."""
    done = isolated(FORBID + HELP)
    assert done.returncode == 0, done.stderr


def test_a_run_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    done = isolated(RUN, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*/summary.json"))) == 2


def isolated(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run([sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, check=False)
