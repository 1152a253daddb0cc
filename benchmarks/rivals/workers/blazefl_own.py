"""BlazeFL's own CIFAR-10 benchmark: ``blazefl-case`` as it ships, with our images in place of a download.

Usage: blazefl_own.py FOLDER MODE (of a checkout of github.com/blazefl/blazefl; MULTI_PROCESS or SINGLE_THREADED).
Multi-threaded mode needs a build of Python without the lock. Scoring after a round is left out of the time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.rivals.common import Clock, answer, load_vision, memory_bytes, use_threads, workload

load_vision()
import torchvision  # noqa: E402

CODE, MODE = Path(sys.argv[1]).resolve(), sys.argv[2]


class Images:
    """What their data set takes from torchvision's."""

    def __init__(self, root: Path, train: bool, download: bool) -> None:
        work = workload()
        x, y = (work.x_train, work.y_train) if train else (work.x_test, work.y_test)
        self.data, self.targets = x.numpy(), y.tolist()

    def __len__(self) -> int:
        return len(self.targets)


def main() -> None:
    work = workload()
    s, folder = work.settings, Path(os.environ["RIVALS_FOLDER"])
    torchvision.datasets.CIFAR10 = Images  # type: ignore[misc,assignment]
    import main as case
    from blazefl.contrib import FedAvgBaseServerHandler

    kept: list[Any] = []

    def summary(self: Any) -> dict[str, float]:
        kept[0].lap()
        kept[1:] = [self.model]
        return {}

    def run(self: Any) -> None:
        kept[:] = [Clock()]
        whole(self)

    whole, FedAvgBaseServerHandler.get_summary = case.FedAvgBenchmarkPipeline.main, summary
    case.FedAvgBenchmarkPipeline.main = run
    case.main(
        global_round=work.rounds, sample_ratio=s["cohort"] / s["clients"], seed=s["seed"], num_clients=s["clients"],
        num_parallels=s.get("parallel", 2), dataset_root_dir=folder / "images", state_dir_base=folder / "state",
        execution_mode=case.ExecutionMode(MODE),
    )  # fmt: skip
    answer(kept[0], kept[1], ["blazefl"], memory_bytes())


sys.path[:0] = [str(CODE / part) for part in ("src", "benchmarks/blazefl-case", "examples/quickstart-fedavg")]
if __name__ == "__main__":
    use_threads(2 if MODE == "SINGLE_THREADED" else 1)
    if workload().device.type == "cuda":
        torch.multiprocessing.set_start_method("spawn")
    main()
