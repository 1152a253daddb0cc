"""Times of what only moves numbers in a step of a module, and of an LSTM's steps: today's way and others, on one GPU.

PYTHONPATH=src python3 -m benchmarks.kernels.moves --out moves.json                       # below a minute
PYTHONPATH=src python3 -m benchmarks.kernels.moves --only embedding,recurrence --out two.json

The shapes are those of a step of ``benchmarks/gpu/modules.py``: 10 clients of 50 samples, in bf16. Every way is
compared with today's before it is timed, captured as a CUDA graph and replayed; inputs that would stay in the cache are
several. Beside each time stands what its bytes take at 4.2 TB/s, each counted once, read or written. The ways:

``cast``: all weights into bf16 and the order of products. Other ways have other tiles: more numbers on their way at
once in each program, or more programs.

``place``: all gradients to their places in the flat gradient, parts summed. Other ways have other tiles; ``spread``
finds what a program is about by one load, where today's takes two, of which one waits for the other; ``apart`` has
launches for gradients of one part, whose programs need fewer registers, so that more run at once.
``into bf16`` is today's with a flat gradient of bf16, which would be other numbers: it says what that would save.

``gather``: the samples of a batch. ``index_select`` writes into the batch's buffer by itself, without a copy behind it.

``embedding``: the gradient by the weights. Today's sorts all indices, fills the result with zeros and adds. The others
(``fedsmoo.kernels.embedding``) list the places that read each block of rows, sum the gradients of these places and
write every number once. They differ in rows of a block, and in how many places are summed at once. Indices are uniform,
or uneven as words are: ``often`` has half of all places in the few first rows. ``placed``: and brought into the flat
gradient by a launch of ``place``; ``into its place``: written there at once.

``recurrence``: all time steps of a layer of an LSTM, forward or backward. Today's launches a kernel for each step,
which reads the weights again. ``whole`` (``fedsmoo.kernels.recurrent.whole``) is one launch: programs keep their
weights in shared memory and wait for each other between steps. ``repeats``: whether twenty calls gave the same bits.

A way is switched on by hand, once its numbers say so: ``TODAY`` of ``place`` and ``cast``, ``ON`` of the two others.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.limits import BYTES
from benchmarks.kernels.parts.jobs import BATCH, CLIENTS, Job, Way, jobs
from benchmarks.kernels.timing import replay_time
from fedsmoo.kernels.runtime import compiling
from fedsmoo.runs.origin.provenance import code_facts, device_name

CACHE = 200e6  # bytes, beyond which inputs do not stay in the cache of the device


def tensors(found: Any) -> list[Tensor]:
    """Return the tensors of a result, those of no number left out."""
    return [v for v in (found if isinstance(found, tuple | list) else [found]) if v.numel()]


def error(found: Any, wanted: Any) -> float:
    """Return how far a result is from another at most, as a share of its largest number; nan if it is no number."""
    pairs = zip(tensors(found), tensors(wanted), strict=True)
    each = [float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-30)) for a, b in pairs]
    return max(each) if all(e == e for e in each) else float("nan")


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill memory that is given out, within it, with what is no number: what a way leaves out is seen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of algorithms that may not repeat their bits
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


def microseconds(way: Way, sets: list[tuple[Any, ...]], replays: int = 7) -> float:
    """Return the median time of a call, captured with one call for each set of inputs."""
    for inputs in sets[:2]:
        way(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for inputs in sets:
            way(*inputs)
    graph.replay()
    return sorted(replay_time(graph) for _ in range(replays))[replays // 2] * 1000 / len(sets)


def measure(job: Job, repeats: int = 20) -> Iterator[dict[str, Any]]:
    """Yield a row for each way: its time, or what is wrong with it."""
    torch.manual_seed(0)
    sets = [job.inputs() for _ in range(max(1, min(8, round(CACHE / job.bytes))))]
    wanted = job.ways["today"](*sets[0])
    for name, way in job.ways.items():
        row: dict[str, Any] = {"what": job.what, "of": job.name, "way": name}
        row["limit_us"] = round(job.bytes / BYTES * 1e6, 1)
        try:
            with poisoned():
                first = way(*sets[0])
            row["error"] = error(first, wanted)
            if job.what == "recurrence":
                again = [way(*sets[0]) for _ in range(repeats)]
                row["repeats"] = all(torch.equal(a, b) for v in again for a, b in zip(v, first, strict=True))
                del again
            if not row["error"] <= job.near or not row.get("repeats", True):
                row["wrong"] = True
            else:
                row["us"] = round(microseconds(way, sets), 2)
        except Exception as e:  # the others are still measured
            row["failed"] = f"{type(e).__name__}: {str(e).splitlines()[0][:200]}"
        yield row


def compile_all(found: list[Job], threads: int) -> None:
    """Compile all kernels, several at a time; what fails is met again where it is timed."""
    for job in found:
        inputs = job.inputs()
        with compiling(threads):
            for name, way in job.ways.items():
                try:
                    way(*inputs)
                except Exception as e:
                    print("  does not compile:", job.what, job.name, name, str(e).splitlines()[:1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="embedding,place,recurrence,cast,gather", help="kinds, separated by commas")
    parser.add_argument("--seconds", type=float, default=55.0, help="after which no other job is begun")
    parser.add_argument("--threads", type=int, default=12, help="that compile")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.kernels.moves times kernels on a GPU, and there is none here")
    begun, rows = time.perf_counter(), []
    facts = {"code": code_facts(), "hardware": device_name(torch.device("cuda")), "clients": CLIENTS, "batch": BATCH}
    kinds = args.only.split(",")
    for kind in kinds:  # in this order
        for job in jobs([kind]):
            if time.perf_counter() - begun > args.seconds:
                print(f"  no time is left for {job.what} of {job.name}", flush=True)
                continue
            compile_all([job], args.threads)
            for row in measure(job):
                rows.append(row)
                print(json.dumps(row), flush=True)
                args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1))
            torch.cuda.empty_cache()
    print(f"{time.perf_counter() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
