"""Where the seconds of a module's first round go, from the start of Python: phases, and what they import.

PYTHONPATH=src python3 -m benchmarks.gpu.first_round --only resnet --out first.json   # twice: empty cache, then not

The modules are those of ``modules.py``, FedAvg of 10 clients, in bf16 on a GPU. Phases lie within each other
where their names are indented; ``imports`` are seconds within a phase's own time.
"""

from __future__ import annotations

import argparse
import builtins
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BEGUN = time.perf_counter()
seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])  # of the clock, of the processor, of imports
open_phases: list[str] = []


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Add the time inside to a phase."""
    clock, processor = time.perf_counter(), time.process_time()
    open_phases.append("  " * len(open_phases) + name)
    try:
        yield
    finally:
        here = seconds[open_phases.pop()]
        here[0] += time.perf_counter() - clock
        here[1] += time.process_time() - processor


def timed(owner: Any, name: str, said: str) -> None:
    """Make a function a phase."""
    function = getattr(owner, name)

    def within(*args: Any, **named: Any) -> Any:
        with phase(said):
            return function(*args, **named)

    setattr(owner, name, within)


def watch_imports() -> None:
    """Count the seconds of outermost imports, by the phase they happen in."""
    plain, depth = builtins.__import__, [0]

    def watched(*args: Any, **named: Any) -> Any:
        clock = time.perf_counter()
        depth[0] += 1
        try:
            return plain(*args, **named)
        finally:
            depth[0] -= 1
            if depth[0] == 0 and open_phases:
                seconds[open_phases[-1]][2] += time.perf_counter() - clock

    builtins.__import__ = watched


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="resnet")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.precision, args.engine = "fp32" if args.device == "cpu" else "bf16", "auto"
    watch_imports()
    with phase("import torch"):
        import torch
    with phase("import fedsmoo"):
        from benchmarks.gpu import modules
        from fedsmoo.engines.oracles import traced
        from fedsmoo.engines.steps import group, replay
    with phase("begin CUDA"):
        torch.zeros(1, device=args.device)
    timed(traced, "traced", "trace the gradient")
    timed(traced, "compile_ahead", "compile its kernels")
    timed(traced, "register_operators", "tell the compiler of operators")
    timed(group, "captured", "compile the step and capture it")
    timed(replay.Recording, "prepare", "prepare the step")
    timed(group.ClientGroup, "prepare", "prepare the gradient")
    make, data = modules.MODULES[args.only]
    with phase("module and data"):
        torch.manual_seed(0)
        module, samples = make(), data()
    with phase("assemble"):
        run, _ = modules.ours(module, samples, args)
    with phase("first round"):
        modules.seconds(run, args.device, 1)
    first = time.perf_counter() - BEGUN
    rows = {n: dict(zip(("clock", "processor", "imports"), v, strict=True)) for n, v in seconds.items()}
    rounds = modules.seconds(run, args.device, args.rounds)
    found = {"model": args.only, "first": first, "phases": rows, "rounds": rounds}
    args.out.write_text(json.dumps(found, indent=1))
    for name, (clock, processor, imports) in seconds.items():
        print(f"{name:<50} {clock:7.2f} s, processor {processor:6.2f}, imports {imports:5.2f}")
    print(f"{first:.2f} s from the start; rounds {[round(s, 4) for s in rounds]}")


if __name__ == "__main__":
    main()
