"""Every kernel compiles for a real GPU, on a machine without one, and the assembler spills next to nothing."""

import json
import os
import sys
from pathlib import Path

import forked
import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the other tests compile for the GPU that is here")
@pytest.mark.parametrize(("precision", "only"), [("bf16", ""), ("fp32", "stem_forward,pool,conv")])
def test_kernels_compile_without_a_gpu(precision, only, tmp_path, device):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "benchmarks/occupancy.py", "--once", "--precision", precision, "--only", only]
    out = tmp_path / "occupancy.json"
    done = forked.run([*command, "--out", out], cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())
    names = {r["kernel"] for r in rows}
    assert {"stem_forward_kernel", "pool_backward_kernel", "conv_forward_kernel", "conv_backward_kernel"} <= names
    shared = {"noise_kernel", "norm_kernel", "norm_backward_kernel", "place_kernel", "cast_kernel", "backward_kernel"}
    shared |= {"maxima_kernel", "windows_backward_kernel"}
    assert only or {"vector_pass", "fold_kernel", *shared} <= names
    # Sines and cosines keep 48 bytes for angles beyond what noise ever asks for.
    assert not [r for r in rows if r["spilled"] > (48 if r["kernel"] == "noise_kernel" else 16)]
    assert not [r for r in rows if r["programs_at_once"] < 1]
    if not only:
        assert {"conv_weight_kernel", "stem_weight_boxes_kernel", "head_kernel"} <= names
        assert all(r["programs_at_once"] >= 2 for r in rows if r["programs"] > 132)
