"""The ways to run each workload on a CPU: ours, loops of PyTorch, and rivals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Way:
    """One way to run a workload: a worker script, the environment it needs, and how it is set up, in words."""

    script: str
    setup: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None  # its own, or none for the one that runs the benchmark
    processes: int = 1
    sockets: bool = False  # whether its processes talk over sockets, which must not be open to others
    code: str | None = None  # the checkout that it runs, below --code


# One thread is the fastest for every way that is one process: products this small are not worth sharing.
EVERYBODY = {
    "fedsmoo, batched engine": Way("ours.py", "one process", ("batched",)),
    "plain PyTorch loop": Way("ours.py", "one process, client after client", ("plain",)),
    "the loop, torch.compile": Way("ours.py", "the same, its network compiled", ("compiled",)),
    "the authors' simulator": Way(
        "authors_worker.py", "its FedAvg, unmodified", (), "authors", code="FL-Simulator"
    ),
    "pfl-research, one process": Way("pfl_worker.py", "SimulatedBackend, FederatedAveraging", (), "pfl"),
    "pfl-research, two processes": Way(
        "pfl_worker.py", "the same, the cohort shared by two processes", (), "pfl", 2, True
    ),
    "BlazeFL, two threads": Way("blazefl_worker.py", "its thread pool, below Python's lock", ("threads",), "blazefl"),
    "BlazeFL, two processes": Way("blazefl_worker.py", "its process pool, shared memory", ("processes",), "blazefl"),
    "FedJAX": Way("fedjax_worker.py", "its FedAvg, steps compiled by JAX", (), "fedjax"),
    "DrJAX": Way("drjax_worker.py", "clients by `vmap`, the round one program of JAX", (), "drjax"),
    "Flower simulation": Way(
        "flower_worker.py", "Ray backend, two actors of one core, its own FedAvg", (), "flower", 1, True
    ),
}  # fmt: skip
OURS = {
    "fedsmoo, engine=auto": Way("ours.py", "two threads", ("auto",)),
    "fedsmoo, products in bf16": Way("ours.py", "two threads", ("auto", "bf16")),
    "plain PyTorch loop": Way("ours.py", "client after client", ("plain",)),
}
OWN = {
    "pfl": OURS | {
        "pfl-research": Way("pfl_own.py", "its train.py as it ships", (), "pfl", code="pfl-research"),
    },
    "blazefl": OURS | {
        "BlazeFL, one thread": Way(
            "blazefl_own.py", "blazefl-case as it ships", ("SINGLE_THREADED",), "blazefl", code="blazefl"
        ),
        "BlazeFL, two processes": Way(
            "blazefl_own.py", "blazefl-case as it ships", ("MULTI_PROCESS",), "blazefl", code="blazefl"
        ),
    },
    "fedjax": OURS | {
        "FedJAX": Way("fedjax_worker.py", "its FedAvg, steps compiled by JAX", (), "fedjax"),
        "DrJAX": Way("drjax_worker.py", "clients by `vmap`, the round one program of JAX", (), "drjax"),
    },
    "authors": OURS | {
        "the authors' simulator": Way(
            "authors_worker.py", "its FedAvg, unmodified", (), "authors", code="FL-Simulator"
        ),
    },
}  # fmt: skip
WAYS: dict[str, dict[str, Way]] = {"digits": EVERYBODY, **OWN}
# What a workload is, in words, and how much of it two cores do in the time there is.
ABOUT: dict[str, tuple[str, dict[str, Any]]] = {
    "pfl": ("pfl-research's CIFAR-10 benchmark: 50 of 1,000 users of 50 images, a CNN with dropout, 5 steps of 10",
            {"rounds": 1}),
    "blazefl": ("BlazeFL's CIFAR-10 benchmark with a tenth of its clients in a round: 10 of 100 clients, the small CNN "
                "of PyTorch's tutorial, flips and crops, 50 steps of 50", {"rounds": 2}),
    "authors": ("the authors' ResNet-18 on CIFAR-10 with a hundredth of the work: 2 of 10 clients of 100 images, flips "
                "and crops, 2 steps of 50", {"rounds": 2}),
    "fedjax": ("FedJAX's EMNIST example with drawn images and FedAvg's server: 10 of 100 clients of 200, a CNN with "
               "dropout, 62 classes, 10 steps of 20", {"rounds": 2}),
}  # fmt: skip
