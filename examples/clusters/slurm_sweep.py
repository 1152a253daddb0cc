"""A sweep as a job array: every job is a worker on the same folder, and takes the runs that nobody works on.

    pip install submitit
    python examples/clusters/slurm_sweep.py examples/clusters/grid.toml --out runs/grid --jobs 4 --gpus 1 --minutes 230

Jobs stop before their time is up, everything saved; the same line goes on with what is left. Without Slurm the jobs are
processes of this machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import submitit

import fedsmoo

SPARE = 10  # minutes of a job that are left for its start and its last checkpoint


def work(file: str, out: str, minutes: float) -> tuple[int, int, int]:
    """Carry out what is missing of a sweep; returns how many runs are finished, failed and left."""
    outcome = fedsmoo.sweep(file, out, minutes=minutes)
    return len(outcome.finished), len(outcome.failed), len(outcome.left)


def main(words: Sequence[str] | None = None) -> list[tuple[int, int, int]]:
    """Submit the workers, wait for them, and say what each has seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", help="the sweep's TOML file, on a file system that all nodes see")
    parser.add_argument("--out", default="runs/grid", help="folder of the runs, on the same")
    parser.add_argument("--jobs", type=int, default=4, help="workers, of which each takes one run or pack at a time")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a worker")
    parser.add_argument("--minutes", type=float, default=230, help="how long a worker trains")
    parser.add_argument("--partition", default=None, help="Slurm's partition")
    parser.add_argument("--cluster", default=None, help="slurm, local or debug (default: slurm where there is one)")
    given = parser.parse_args(words)
    executor = submitit.AutoExecutor(folder=Path(given.out, ".jobs"), cluster=given.cluster)
    own = {"slurm_partition": given.partition} if given.partition else {}
    executor.update_parameters(
        name="fedsmoo", timeout_min=int(given.minutes) + SPARE, gpus_per_node=given.gpus, cpus_per_task=4,
        slurm_array_parallelism=given.jobs, **own,
    )  # fmt: skip
    n = given.jobs
    jobs = executor.map_array(work, [given.file] * n, [given.out] * n, [given.minutes] * n)
    seen = []
    for k, job in enumerate(jobs):
        seen.append(job.result())
        print("worker {}: {} finished, {} failed, {} left".format(k, *seen[-1]))
    print(f"next: fedsmoo runs {given.out}")
    return seen


if __name__ == "__main__":
    main()
