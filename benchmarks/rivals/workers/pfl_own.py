"""pfl-research's own CIFAR-10 benchmark: its ``train.py`` as it ships, with its configuration and our images.

Usage: pfl_own.py FOLDER (of a checkout of github.com/apple/pfl-research). Its stopwatch reads our clock as well.
"""

from __future__ import annotations

import os
import pickle
import runpy
import sys
from pathlib import Path

from pfl.callback import stopwatch
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.rivals.common import Clock, answer, memory_bytes, use_threads, workload


class Channels(nn.Module):
    """Their network takes images with channels last; tests are scored with channels first."""

    def __init__(self, theirs: nn.Module) -> None:
        super().__init__()
        self.theirs = theirs

    def forward(self, x: Tensor) -> Tensor:
        return self.theirs(x.movedim(1, -1))


class Timed(stopwatch.StopwatchCallback):
    """Their stopwatch, beside our clock."""

    clock: Clock
    model: PyTorchModel

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        Timed.clock, Timed.model = Clock(), model
        return super().on_train_begin(model=model)

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.clock.lap()
        return super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)


def write_images(folder: Path) -> None:
    """Write the images as their preprocessing does."""
    work = workload()
    for name, x, y in (("train", work.x_train, work.y_train), ("test", work.x_test, work.y_test)):
        with (folder / f"cifar10_{name}.p").open("wb") as f:
            pickle.dump((x.numpy(), y.numpy().reshape(-1, 1)), f)


def main() -> None:
    work, code = workload(), Path(sys.argv[1]).resolve() / "benchmarks"
    folder = Path(os.environ["RIVALS_FOLDER"], f"pfl-{os.getpid()}")
    folder.mkdir()
    write_images(folder)
    os.chdir(folder)  # where it writes its metrics
    use_threads()
    stopwatch.StopwatchCallback = Timed  # type: ignore[misc]
    sys.path.insert(0, str(code))
    config = code / "image_classification" / "configs" / "baseline.yaml"
    options = {
        "args_config": config, "data_path": folder, "central_num_iterations": work.rounds,
        "seed": work.settings["seed"], "evaluation_frequency": 10**6,
    }  # fmt: skip
    sys.argv = ["train.py", *(str(word) for n, v in options.items() for word in (f"--{n}", v))]
    runpy.run_path(str(code / "image_classification" / "pytorch" / "train.py"), run_name="__main__")
    # Their normalisation is by the images' own mean and deviation over all channels; ours is near it.
    answer(Timed.clock, Channels(Timed.model.pytorch_model), ["pfl"], memory_bytes())


if __name__ == "__main__":
    main()
