"""What a compiled kernel says of itself: registers, bytes spilled, copies of a single number."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import triton


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
