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
@pytest.mark.parametrize("package", ["torch", "typer"])
def test_ctrl_c_during_the_imports_shows_no_traceback(way: str, package: str, tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").write_text(SLOW)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"}
    words = [sys.executable, *starts()[way], "--version"]

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
    def interrupted(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 130


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
