"""The notebooks run, from a clean start, in one kernel that forgets what the one before left; and are kept clean."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_kept_without_outputs_and_is_linked(path: Path) -> None:
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None
    first = next(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert re.search(r'find_spec\("fedsmoo"\) is None:.*\n +%pip install --quiet --find-links \. \'?fedsmoo', first)
    assert f"notebooks/{path.name}" in (ROOT / "docs/python.md").read_text(encoding="utf-8")


def test_all_notebooks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their assertions are among their cells; what is printed at the end of a cell is there."""
    assert len(NOTEBOOKS) == 5
    monkeypatch.delenv("MPLBACKEND", raising=False)  # pictures below their cells
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    pages = [nbformat.read(path, 4) for path in NOTEBOOKS]
    cells = [cell for page in pages for cell in (nbformat.v4.new_code_cell("%reset -f"), *page.cells)]
    whole = nbformat.v4.new_notebook(cells=cells)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(whole, timeout=300, kernel_name="python3", resources=where).execute()
    shown = [o for cell in whole.cells if cell.cell_type == "code" for o in cell.outputs]
    assert not [o for o in shown if o.output_type == "error"]
    html = [o.data["text/html"] for o in shown if o.output_type == "execute_result" and "text/html" in o.data]
    assert sum("FedSMOO" in table for table in html) >= 2  # a result and a comparison
    assert sum("image/png" in o.get("data", {}) for o in shown) == 7
