"""Our engine, or a plain loop on the same batches, eager or compiled, in a process of its own."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.rivals.common import Clock, Workload, answer, memory_bytes, use_threads, workload
from fedsmoo.data.dataset import Dataset
from fedsmoo.models import build, wrap
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.simulation import Simulation


def simulation(work: Workload, engine: str, precision: str = "fp32") -> Simulation:
    """Return our run; its last round, after which it would be evaluated, is never made: no way's time holds a test."""
    s = work.settings
    config = Config(
        algorithm=s["algorithm"], engine=engine, device=s["device"], clients=len(work.clients), cohort=s["cohort"],
        rounds=work.rounds + 1, local_epochs=s["local_epochs"], batch_size=s["batch_size"], lr=s["lr"], lr_decay=1.0,
        weight_decay=s["weight_decay"], clip=s["clip"], seed=s["seed"], eval_every=10**6,
        precision=precision if s["device"] == "cpu" else s["precision"], augment=s.get("augment", False),
    )  # fmt: skip
    image = work.x_train.dtype == torch.uint8
    size = {n: tuple(s[n]) if image else None for n in ("mean", "std")}
    data = Dataset(
        s["dataset"], work.x_train, work.y_train, work.x_test, work.y_test, s["classes"], **size, augment=image
    )  # fmt: skip
    return assemble(config, data=data, model=model_of(work, data), indices=work.clients)


def model_of(work: Workload, data: Dataset) -> object:
    """Return the network with the first weights as our engine takes it: the built-in one where we have it."""
    if work.settings["net"] == "resnet18_gn":
        module = build("resnet18_gn", data, 0, live=False).module
        module.load_state_dict(work.start)
        return wrap(module, data)
    return wrap(work.module().cpu(), data)


def engine(name: str, precision: str = "fp32") -> None:
    run = simulation(workload(), name, precision)
    model, clock, scored = run.setup.task.model, Clock(), workload().scored
    for t in range(workload().rounds):
        run.advance()
        clock.lap()
        if t + 1 == scored:
            kept = model.export(run.server.w)
            clock.begin()
    answer(clock, kept, [], memory_bytes(), engine=run.engine.name)


def loop(kind: str) -> None:
    """Train on the cohorts and batches of our own run; drawing them is inside the time, as it is for the engine."""
    work = workload()
    run, model, local = simulation(work, "serial"), work.module(), work.module().train()
    x, y = work.inputs(work.x_train), work.y_train.to(work.device)
    step, clock = STEPS[kind](work, local), Clock()
    for t in range(work.rounds):
        _, plan = run.draw_round(t)
        mean = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        clients = plan.index.shape[1]
        for c in range(clients):
            local.load_state_dict(model.state_dict())
            for k, n in enumerate(plan.count[:, c]):
                if n:
                    index = torch.from_numpy(plan.index[k, c, :n]).to(work.device)
                    step(x[index], y[index])
            for name, p in local.named_parameters():
                mean[name] += p.detach() / clients
        model.load_state_dict(mean, strict=False)
        clock.lap()
        if t + 1 == work.scored:
            kept = copy.deepcopy(model)
            clock.begin()
    answer(clock, kept, [], memory_bytes())


def plain(work: Workload, local: nn.Module) -> Step:
    optimiser = work.optimiser(local.parameters())
    return lambda x, y: work.step(local, optimiser, x, y)


def compiled(work: Workload, local: nn.Module) -> Step:
    """The network compiled; on a GPU in the mode that captures its forward and backward pass as CUDA graphs."""
    fast = torch.compile(local, mode="reduce-overhead" if work.device.type == "cuda" else "default")
    optimiser = work.optimiser(local.parameters())
    return lambda x, y: work.step(fast, optimiser, x, y)


def captured(work: Workload, local: nn.Module) -> Step:
    """The network compiled, and the whole step, clip and update included, captured as one CUDA graph."""
    fast, optimiser, graph = torch.compile(local), work.optimiser(local.parameters()), torch.cuda.CUDAGraph()
    held: list[Tensor] = []

    def step(x: Tensor, y: Tensor) -> None:
        if not held:
            held.extend((x.clone(), y.clone()))
            kept = {n: p.clone() for n, p in local.state_dict().items()}
            aside = torch.cuda.Stream()
            with torch.cuda.stream(aside):  # compiles, and lets libraries choose
                for _ in range(3):
                    work.step(fast, optimiser, *held)
            torch.cuda.synchronize()
            optimiser.zero_grad()
            with torch.cuda.graph(graph):
                work.step(fast, optimiser, *held)
            local.load_state_dict(kept)
        held[0].copy_(x)
        held[1].copy_(y)
        graph.replay()

    return step


Step = Callable[[Tensor, Tensor], None]
STEPS: dict[str, Callable[[Workload, nn.Module], Step]] = {"plain": plain, "compiled": compiled, "captured": captured}

if __name__ == "__main__":
    use_threads()
    loop(sys.argv[1]) if sys.argv[1] in STEPS else engine(*sys.argv[1:])
