"""The commands of the documents that no test types, each with the reason."""

from __future__ import annotations

GPU = "needs a GPU and CIFAR, which is downloaded"
GPUS = "needs several GPUs"
INSTALLS = "installs from an index: tools/package.py does, with the wheel"
FEDERATION = "make test-deploy types it, with other ports"
CLUSTERS = "needs a scheduler: tests/examples/test_clusters.py runs the script with one that stands for it"
TEN = "fedsmoo table accuracy --columns 10%-of-100 cifar10.dirichlet-0.1"
LONG = "takes minutes to hours: .ci/run runs the sample"

# A document, how the command begins (every word of it, or the first ones), and why it is not run.
NOT_RUN = (
    ("README.md", "pip install", INSTALLS),
    ("CONTRIBUTING.md", "fedsmoo analyse weight_norm", "its file belongs into the package"),
    ("docs/clusters.md", "examples/clusters/workers.sh", CLUSTERS),
    ("docs/clusters.md", "ssh", "needs a second machine"),
    ("docs/clusters.md", "sbatch", CLUSTERS),
    ("docs/clusters.md", "python examples/clusters/slurm_sweep.py", CLUSTERS),
    ("docs/clusters.md", "docker build", "needs a daemon: tools/container.py --replay carries out the recipe"),
    ("docs/clusters.md", "kubectl", "needs a cluster: tests/examples/test_clusters.py reads the manifest"),
    ("docs/distributed.md", "torchrun --nproc-per-node=8", GPUS),
    ("docs/distributed.md", "torchrun --nproc-per-node=2", "tests/engines/distributed starts it"),
    ("docs/experiments.md", "fedsmoo table accuracy --columns cifar10.dirichlet-0.1", GPU),
    ("docs/experiments.md", "fedsmoo table accuracy --scale 0.01 --model cnn_gn", GPU),
    *(("docs/first-steps.md", start, INSTALLS) for start in ("python3 -m venv", ".", "pip install")),
    ("docs/first-steps.md", "fedsmoo data get", GPU),
    ("docs/first-steps.md", "fedsmoo run --algorithm fedsmoo --dataset cifar10", GPU),
    ("docs/flower.md", "pip install", INSTALLS),
    *(("docs/flower.md", start, FEDERATION) for start in (
        "export", ".", "flower-superlink", "fedsmoo deploy gate", "printf", "until", "for", "flower-supernode",
        "flwr run", "cat")),
    ("docs/flower.md", "flwr app publish", "publishes"),
    ("docs/gpu.md", "python3 -m benchmarks", "needs a GPU"),
    ("docs/gpu.md", "make test-gpu", "needs a GPU"),
    ("docs/reliability.md", "make drills", LONG),
    ("docs/reliability.md", "python -m benchmarks.drills.run", LONG),
    ("docs/report.md", "fedsmoo serve", "serves until it is stopped: tests/pages/test_server.py asks it"),
    ("docs/resume.md", "fedsmoo resume", "needs a run that was killed: tests/runs have many"),
    ("docs/tutorials/many-gpus.md", "torchrun --nproc-per-node=8", GPUS),
    ("docs/tutorials/many-gpus.md", "torchrun --nproc-per-node=2", "tests/engines/distributed starts it"),
    ("docs/tutorials/reproduce-a-table.md", "fedsmoo data get", GPU),
    ("docs/tutorials/reproduce-a-table.md", f"{TEN} --methods FedAvg,FedSMOO --seeds", GPU),
    ("experiments/README.md", "for", GPU),
    ("experiments/README.md", "fedsmoo sweep", GPU),
    ("experiments/README.md", "done", GPU),
    ("experiments/README.md", "python -m benchmarks.campaign.adopt", "takes in what those runs made"),
    ("experiments/README.md", "make tables figures", "writes into the checkout, and needs what those runs made"),
)  # fmt: skip
# Blocks of Python that are not run.
NOT_RUN_PYTHON = (
    ("docs/flower.md", "# federation/client.py", "names stand for your own: tests/deploy has such hooks"),
)


def why_not(document: str, line: str) -> str | None:
    """Return why a command is not run, or None where it is."""
    return next((why for place, start, why in NOT_RUN if place == document and line.startswith(start)), None)
