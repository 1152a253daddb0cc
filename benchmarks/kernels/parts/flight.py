"""Products that loops of a kernel leave in flight, and loads before a wait, by Triton's program: needs no GPU."""

from __future__ import annotations

import re
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend


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


def before_waits(program: str) -> int:
    """Return how many loads of what other programs write, past a program's own cache, stand before a wait for them.

    There must be none: a loop's load that is brought forward, by a pipeline say, would read what is not written yet.
    """
    early, waited = 0, False
    for line in program.splitlines():
        waited = (waited or "scf.while" in line) and " scf.for " not in line
        early += "cacheModifier = cg" in line and not waited
    return early


def going(steps: list[str]) -> list[bool]:
    """Return the products in flight after some lines, oldest first: whether each reads registers."""
    found: list[bool] = []
    for step in steps:
        if "ttng.warp_group_dot " in step:
            found = [*found, reads_registers(step)] if "isAsync = true" in step else []
        elif waits := re.search(r"warp_group_dot_wait .*pendings = (\d+)", step):
            found = found[len(found) - min(len(found), int(waits[1])) :]
    return found
