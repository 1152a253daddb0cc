"""Files that a user's own code imports are part of the run that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedsmoo
from fedsmoo.core import FedsmooError
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.imports import edited_imports, imported_facts
from fedsmoo.runs.resume import files_changed
from fedsmoo.runs.storage.names import STARTED

METHOD = """
from dataclasses import dataclass
from fedsmoo import FedAvg
from fedsmoo_helper_{name} import A


@dataclass(frozen=True)
class Mine(FedAvg):
    \"\"\"Longer steps.

    client   w_i <- w_i - A lr g(w_i)
    \"\"\"

    def slope(self, w, grad, down, me):
        import fedsmoo_package_{name}.inner
        return A * grad(w), me
"""
SMALL = {"model": "softmax", "rounds": 4, "clients": 4, "cohort": 2, "local_steps": 1, "device": "cpu"}


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that stopped after its second round; its method imports a module and, when it is called, a package."""
    name = tmp_path.name.replace("-", "_")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(METHOD.format(name=name))
    (tmp_path / f"fedsmoo_helper_{name}.py").write_text("A = 2.0\n")
    package = tmp_path / f"fedsmoo_package_{name}"
    package.mkdir()
    (package / "__init__.py").write_text("from . import other\n")
    (package / "inner.py").write_text("B = 1\n")
    (package / "other.py").write_text("import torch\n")
    method = f"{tmp_path / 'mine.py'}:Mine"
    fedsmoo.run(SMALL, out=tmp_path / "run", algorithm=method, callback=lambda r: r.round < 2)
    return tmp_path


def test_an_edited_module_is_not_resumed(begun: Path) -> None:
    kept = json.loads((begun / "run" / STARTED).read_text())["imported"]
    (helper,) = begun.glob("fedsmoo_helper_*.py")
    assert helper.name in kept
    helper.write_text("A = 3.0\n")
    with pytest.raises(FedsmooError, match=f"{helper.name} was edited or removed since"):
        fedsmoo.resume(begun / "run")
    helper.write_text("A = 2.0\n")
    assert len(fedsmoo.resume(begun / "run").history) == 4


def test_several_edited_files_are_several() -> None:
    assert str(files_changed(Path("run"), ["a.py", "b.py"])).startswith(
        "a.py, b.py were edited or removed since run was started: put back what they held, or start a new run"
    )


def test_a_finished_run_by_another_module_is_not_taken_for_done(begun: Path) -> None:
    settings = {**SMALL, "rounds": 1, "lr": [0.1], "algorithm": f"{begun / 'mine.py'}:Mine"}
    (helper,) = begun.glob("fedsmoo_helper_*.py")
    for _ in range(2):
        assert len(fedsmoo.sweep(settings, begun / "runs").finished) == 1
    helper.write_text("A = 3.0\n")
    (why,) = fedsmoo.sweep(settings, begun / "runs").failed.values()
    assert f"holds a run by another {helper.name}, edited since" in why


def test_what_is_imported_is_found_in_packages_and_functions(begun: Path) -> None:
    config = Config(algorithm=f"{begun / 'mine.py'}:Mine")
    (package,) = begun.glob("fedsmoo_package_*")
    (helper,) = begun.glob("fedsmoo_helper_*.py")
    inside = {f"{package.name}/{name}.py" for name in ("__init__", "inner", "other")}
    found = imported_facts(config)
    assert found["imported"].keys() == {helper.name, *inside}
    assert edited_imports(config, found) == []
    (package / "other.py").unlink()
    assert edited_imports(config, found) == [f"{package.name}/other.py"]
    assert edited_imports(config, {"imported": {"../x": "", "/etc/passwd": ""}}) == ["../x", "/etc/passwd"]
    assert edited_imports(config, {}) == edited_imports(config, {"imported": 3}) == []


def test_methods_of_ours_import_no_file_of_a_users() -> None:
    assert imported_facts(Config()) == {}
