"""What Triton makes of a kernel, without a GPU: registers, spills, narrow copies, products a loop leaves in flight."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend


def usage(cubin: bytes) -> tuple[int, int]:
    """Registers a thread and bytes spilled, as the assembler says."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"REG:(\d+)", said)[1]), int(re.search(r"STACK:(\d+)", said)[1])


def narrow_copies(assembly: str) -> int:
    """Return how many instructions of a kernel copy four bytes a thread to shared memory: they can copy sixteen."""
    return len(re.findall(r"cp\.async\.ca\.shared\.global[^;]*, 0x4[,;\s]", assembly))


def lowered(source: ASTSource, options: dict[str, Any], target: GPUTarget) -> str:
    """Return Triton's program for a GPU, which says what is asynchronous; no assembler is asked."""
    stages: dict[str, Any] = {}
    backend, context = make_backend(target), ir.context()
    parsed = backend.parse_options(options)
    backend.add_stages(stages, parsed, source.language)
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(parsed), backend.get_module_map()
    module = source.make_ir(target, parsed, *functions, context)
    for stage in ("ttir", "ttgir"):
        module = stages[stage](module, {})
    return str(module)


def reads_registers(product: str) -> bool:
    """Whether a product, a line of the program, has its left operand in registers, not in shared memory."""
    return product.partition(" * ")[0].rpartition(" : ")[2].startswith("tensor<")


def from_registers(program: str) -> int:
    """Return how many products of a program read an operand from registers; those of older cores all do."""
    return sum(reads_registers(line) for line in program.splitlines() if re.search(r"(warp_group|tt\.)_?dot ", line))


def in_flight(program: str) -> int:
    """Return how many products that read an operand from registers a loop leaves in flight at its end, at most.

    There must be none: the next step would load its operand into the registers that they still read. Products that read
    both operands from shared memory may go on; the pipeline's buffers are for that.
    """
    lines, most = program.splitlines(), 0
    for at, line in enumerate(lines):
        if " scf.for " in line:
            ends = line[: len(line) - len(line.lstrip())] + "}"
            end = next(i for i in range(at + 1, len(lines)) if lines[i].startswith(ends))
            most = max(most, sum(going(lines[at + 1 : end])))
    return most


def going(steps: list[str]) -> list[bool]:
    """Return the products in flight after some lines, oldest first: whether each reads registers."""
    found: list[bool] = []
    for step in steps:
        if "ttng.warp_group_dot " in step:
            found = [*found, reads_registers(step)] if "isAsync = true" in step else []
        elif waits := re.search(r"warp_group_dot_wait .*pendings = (\d+)", step):
            found = found[len(found) - min(len(found), int(waits[1])) :]
    return found
