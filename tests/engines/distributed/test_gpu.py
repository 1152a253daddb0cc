"""Two ranks that share one GPU give what one process gives."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from .launch import HERE, Meeting, environment, finish, start

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_two_ranks_on_one_gpu(tmp_path):
    path = tmp_path / "end"
    for code, text in finish(start(Meeting(), 2, HERE / "gpu_worker.py", path), timeout=400):
        assert code == 0, text
    subprocess.run([sys.executable, HERE / "gpu_worker.py", path], env=environment(), check=True, timeout=400)
    alone, ranks = torch.load(f"{path}.alone"), [torch.load(f"{path}.{r}") for r in range(2)]
    for name, one in alone.items():
        for end in (rank[name] for rank in ranks):
            assert end["ranks"] == 2
            rows = {f"{i} {n}": (v, one["clients"][i][n]) for i, row in end["clients"].items() for n, v in row.items()}
            pairs = rows | {n: (v, one["server"][n]) for n, v in end["server"].items()}
            for what, (ours, theirs) in pairs.items():
                if name == "exact":
                    assert torch.equal(ours.cpu(), theirs.cpu()), what
                else:
                    torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=1e-9, atol=1e-10, msg=f"{name} {what}")
