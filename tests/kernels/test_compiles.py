"""Every kernel compiles for a real GPU, on a machine without one, the assembler spills next to nothing, and no loop
loads over what a product still reads."""

import ast
import json
import os
import sys
from pathlib import Path

import forked
import pytest
import torch

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the other tests compile for the GPU that is here")


def occupancy(tmp_path, *options):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT / "src")}
    out = tmp_path / "occupancy.json"
    command = [sys.executable, "-m", "benchmarks.kernels.occupancy", "--once", *options, "--out", out]
    done = forked.run(command, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize(("precision", "only"), [("bf16", ""), ("fp32", "stem_forward,pool,conv,grouped")])
def test_kernels_compile_without_a_gpu(precision, only, tmp_path, device):
    rows = occupancy(tmp_path, "--precision", precision, "--only", only)
    names = {r["kernel"] for r in rows}
    assert {"stem_forward_kernel", "pool_backward_kernel", "conv_forward_kernel", "conv_backward_kernel"} <= names
    assert {"grouped_kernel", "grouped_data_kernel", "grouped_weight_kernel"} <= names
    both = [r["kernel"] for r in rows]  # places in 32 bits, and in 64
    assert both.count("grouped_kernel") == both.count("grouped_data_kernel") == both.count("grouped_weight_kernel") == 2
    shared = {"noise_kernel", "norm_kernel", "norm_backward_kernel", "place_kernel", "cast_kernel", "backward_kernel"}
    shared |= {"maxima_kernel", "windows_backward_kernel", "find_kernel", "add_kernel", "layer_norm_backward_kernel"}
    shared |= {"whole_forward_kernel", "whole_backward_kernel"}
    assert only or {"vector_pass", "fold_kernel", *shared} <= names
    # Sines and cosines keep 48 bytes for angles beyond what noise ever asks for.
    assert not [r for r in rows if r["spilled"] > (48 if r["kernel"] == "noise_kernel" else 16)]
    assert not [r for r in rows if r["programs_at_once"] < 1 or r["in_flight"] or r["before_waits"]]
    if not only:
        assert {"conv_weight_kernel", "stem_weight_boxes_kernel", "head_kernel", "head_norm_kernel"} <= names
        assert all(r["programs_at_once"] >= 2 for r in rows if r["programs"] > 132)


def test_tf32_is_copied_four_numbers_at_a_time(tmp_path, device):
    """Hopper's own products of tf32 want what they read in one order, into which numbers are copied one at a time."""
    rows = occupancy(tmp_path, "--precision", "tf32", "--only", "conv_forward,conv_weight,stem_weight")
    narrow = {r["kernel"]: r["narrow_copies"] for r in rows}
    assert narrow == dict.fromkeys(("conv_forward_kernel", "conv_weight_kernel", "stem_weight_kernel"), 0)
    assert not [r for r in rows if r["spilled"] > 16]


def test_a_copy_of_a_single_number_is_counted(device):
    from benchmarks.kernels.parts.assembly import narrow_copies

    copy = "cp.async.{}.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x{}, %r2;"
    assert narrow_copies("\n".join(copy.format(*how) for how in (("ca", 4), ("cg", 10), ("ca", 4)))) == 2


def kernels_with_products():
    """Names of the kernels that multiply matrices, themselves or in functions that they call."""
    calls, kernels = {}, set()
    for path in (ROOT / "src/fedsmoo/kernels").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and "triton.jit" in "".join(map(ast.unparse, node.decorator_list)):
                names = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
                calls.setdefault(node.name, set()).update(ast.unparse(n) for n in names)
                kernels |= {(module, node.name)} if node.name.endswith("_kernel") else set()

    def multiplies(name):
        return name == "tl.dot" or any(multiplies(called) for called in calls.get(name, ()))

    return {f"{module}.{name}" for module, name in kernels if multiplies(name)}


def test_no_loop_goes_on_while_a_product_reads_registers(tmp_path, device):
    rows = occupancy(tmp_path, "--products")
    assert {r["kernel"] for r in rows if r["products"]} == kernels_with_products()
    by_boxes = {(r["kernel"].rpartition(".")[2], r["precision"]) for r in rows if r["boxes"]}
    kernels = {"conv_forward_kernel", "conv_backward_kernel", "conv_weight_kernel", "stem_weight_boxes_kernel"}
    general = {"pixels_kernel", "weight_boxes_kernel"}
    assert by_boxes == {(k, "bf16") for k in kernels} | {(k, p) for k in general for p in ("bf16", "tf32")}
    assert not [r for r in rows if r["in_flight"]]
    turned = [r for r in rows if r["tile"].get("TURNED")]  # both operands stay in shared memory, for all tiles
    assert {r["kernel"].rpartition(".")[2] for r in turned} == (kernels | general) - {"stem_weight_boxes_kernel"}
    assert not [r for r in turned if r["from_registers"]]


@pytest.mark.parametrize(
    ("operand", "waits", "found"),
    [("tensor<64x16xbf16>", 1, 1), ("tensor<64x16xbf16>", 0, 0), ("!ttg.memdesc<64x16xbf16>", 1, 0)],
)
def test_what_is_in_flight_at_a_loops_end(operand, waits, found, device):
    from benchmarks.kernels.parts.flight import in_flight

    product = (
        f"%d = ttng.warp_group_dot %a, %b, %c {{isAsync = true, precision = 0 : i32}} : {operand} * !ttg.memdesc<>"
    )
    loop = [
        "  %r = scf.for %i = %0 to %n step %1 {", f"    {product}", "    scf.if %p {", "    }", f"    {product}",
        f"    %w = ttng.warp_group_dot_wait %d {{pendings = {waits} : i32}} : tensor<>", "    scf.yield %w", "  }",
    ]  # fmt: skip
    assert in_flight("\n".join([*loop, f"  {product}"])) == found


def test_a_load_before_a_wait_is_counted(device):
    """As a pipeline brings it forward: before the loop, and in it before the wait."""
    from benchmarks.kernels.parts.flight import before_waits

    load, wait = "  %a = tt.load %at cacheModifier = cg : tensor<64x256x!tt.ptr<bf16>>", "  scf.while : () -> () {"
    loop = "  %c = scf.for %t = %first to %last step %one {"
    assert before_waits("\n".join([loop, "  %x = tt.load %at : tensor<2x2xbf16>", wait, load])) == 0
    assert before_waits("\n".join([wait, load, loop, load, wait, load])) == 1
    assert before_waits("\n".join([load, loop, wait, load])) == 1
