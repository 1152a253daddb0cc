"""pfl-research: its simulated backend and FederatedAveraging with a PyTorch model.

With PFL_WORKER_ADDRESSES set, several such processes share a cohort, as pfl's guide to fast simulations says.
"""

from __future__ import annotations

import types

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.rivals.common import Clock, answer, memory_bytes, use_threads, workload


def loss(self: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(self(x).float(), y)


def metrics(self: nn.Module, x: Tensor, y: Tensor) -> dict[str, Weighted]:
    return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}  # type: ignore[operator]


class Timer(TrainingProcessCallback):
    """A clock that is read after every round."""

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.clock = Clock()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.clock.lap()
        return False, Metrics()


def main() -> None:
    work = workload()
    s = work.settings
    use_threads()
    np.random.seed(s["seed"])  # pfl draws its cohorts from numpy's global generator, the same in every process
    module = work.module()
    module.loss, module.metrics = types.MethodType(loss, module), types.MethodType(metrics, module)  # what pfl asks for
    x, y = work.inputs(work.x_train), work.y_train.to(work.device)
    users = {i: Dataset([x[c], y[c]], user_id=str(i)) for i, c in enumerate(work.clients)}
    # Datasets are made once: pfl keeps the batches of a dataset it has met.
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    model = PyTorchModel(
        module,
        work.optimiser,
        torch.optim.SGD(module.parameters(), lr=1.0),
        amp_dtype=torch.bfloat16 if s["precision"] == "bf16" else None,
    )
    timer = Timer()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds, evaluation_frequency=10**6, train_cohort_size=s["cohort"],
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=s["local_epochs"], local_learning_rate=s["lr"], local_batch_size=s["batch_size"],
            local_max_grad_norm=s["clip"],
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[timer],
        send_metrics_to_platform=False,
    )  # fmt: skip
    answer(timer.clock, module, ["pfl"], memory_bytes())


if __name__ == "__main__":
    main()
