"""The recorded step of an oracle that a compiler cannot look into, on the CPU: same numbers as the eager steps."""

from __future__ import annotations

import gc
import json
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
import torch

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.cli import main
from fedsmoo.engines import batched
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.steps.capture import uncollected
from fedsmoo.engines.steps.eager import EagerStepper
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.sweeps.pack import Pack, assemble_pack

from .opaque import Rounded
from .small import largest_gap, on_engine, simulation, trace


def run(method: str, recorded: bool, compile: bool = False, groups: int | None = None):
    def engine(setup: Setup) -> Batched:
        return Batched(
            setup, oracle=Rounded(setup.task), stepper=replayed(compile, groups) if recorded else EagerStepper
        )

    return simulation(engine, "mlp", ALGORITHMS[method]())


def replayed(compile: bool = False, groups: int | None = None):
    return partial(ReplayStepper, compile=compile, groups=groups, passes=False)


@pytest.fixture
def traced(monkeypatch):
    """Functions are traced and run as they are; the list holds each traced one's operations."""
    torch.compiler.reset()
    seen, compile = [], torch.compile

    def backend(module, inputs):
        seen.append([str(n.target) for n in module.graph.nodes])
        return module.forward

    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, fullgraph=True, dynamic=False, backend=backend))
    yield seen
    torch.compiler.reset()


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedsam", "fedsmoo"])
def test_weights_kept_in_the_kernels_type_follow_the_weights(method, groups):
    eager, recorded = run(method, recorded=False), run(method, recorded=True, groups=groups)
    assert largest_gap(trace(eager), trace(recorded)) < 1e-14
    plain = simulation("batched", "mlp", ALGORITHMS[method]())
    assert largest_gap(trace(plain), trace(run(method, recorded=True))) > 1e-5  # the rounding is really there


def test_groups_share_no_oracle_and_no_plan():
    made = run("fedsmoo", recorded=True, groups=2)
    made.advance()
    (recording,) = made.engine.stepper.recordings.values()
    first, second = recording.groups
    assert first.oracle is not second.oracle
    assert first.k.data_ptr() != second.k.data_ptr()
    for v in (second.index, second.weight, second.total):  # views of something larger would begin anywhere
        assert v.storage_offset() == 0
    assert second.rows.w.data_ptr() == recording.rows.w[len(first.rows.w) :].data_ptr()


def test_the_step_rounds_only_what_no_buffer_holds(traced):
    """FedAvg's gradient is at the weights, whose rounded copy the step keeps; SAM's second one is elsewhere."""
    rounded = {}
    for method in ("fedavg", "fedsam"):
        run(method, recorded=True, compile=True).advance()
        rounded[method] = traced[-1].count("to")
    assert rounded == {"fedavg": 0, "fedsam": 1}


def test_groups_of_one_size_and_all_methods_share_traced_code(traced):
    run("fedavg", recorded=True, compile=True, groups=2).advance()
    assert len(traced) == 2  # the batch, the step: once for both groups
    run("scaffold", recorded=True, compile=True, groups=2).advance()
    assert len(traced) == 3  # another step, the same batch


def test_a_compiled_step_reads_samples_on_the_host(traced):
    """The batch is looked up in the ring of buffers that the host fills, by the step's number."""

    def engine(setup: Setup, compile: bool) -> Batched:
        on_host = replace(setup, task=replace(setup.task, staged=compile))
        return Batched(on_host, oracle=Rounded(on_host.task), stepper=replayed(compile))

    made = [simulation(partial(engine, compile=c), "mlp", ALGORITHMS["fedavg"](), rounds=1) for c in (False, True)]
    assert largest_gap(*map(trace, made)) < 1e-14
    assert made[1].engine.stepper.compile
    assert len(traced) == 2  # the batch, the step


def test_many_methods_compile_in_one_process(traced):
    """More recordings than the compiler's limit of recompilations of one function."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for method in list(ALGORITHMS)[:12]:
            made = run(method, recorded=True, compile=True)
            made.advance()
            assert made.engine.stepper.compile, method


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_groups_of_several_runs_with_numbers_of_their_own(groups):
    """Two runs of three clients that differ in r, weight decay and learning rate: a group may hold parts of both."""
    base = {"dataset": "digits", "model": "softmax", "clients": 9, "cohort": 3, "rounds": 2, "local_steps": 2}
    base |= {"batch_size": 8, "algorithm": "fedsmoo", "engine": "batched", "device": "cpu", "eval_every": 10}
    configs = [
        Config(**base, seed=i, lr=0.1 * (i + 1), weight_decay=0.01 * i, algorithm_options={"r": 0.1 * (i + 1)})
        for i in range(2)
    ]
    alone = [assemble(c) for c in configs]
    alone = [on_engine(r, Batched(r.setup, oracle=Rounded(r.setup.task), stepper=EagerStepper)) for r in alone]
    for run in alone:
        run.run()
    runs = assemble_pack(configs)
    first = runs[0].setup
    runs[0] = on_engine(runs[0], Batched(first, oracle=Rounded(first.task), stepper=replayed(groups=groups)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        Pack(runs).run()
    (recording,) = runs[0].engine.stepper.recordings.values()
    assert len(recording.groups) == groups
    for one, packed in zip(alone, runs, strict=True):
        for name, v in one.server.items():
            torch.testing.assert_close(getattr(packed.server, name), v, rtol=1e-4, atol=1e-6)


def test_a_step_that_cannot_be_compiled_is_said_where_the_run_is_described(tmp_path, monkeypatch, capsys):
    """In what ``fedsmoo run`` prints, and in the run's summary; the numbers are those of the eager steps."""
    settings = {"algorithm": "fedavg", "model": "softmax", "clients": 4, "cohort": 2, "rounds": 2, "local-steps": 2}
    settings |= {"device": "cpu", "engine": "batched", "save-every": 0}
    plain = ["run", *(word for name, value in settings.items() for word in (f"--{name}", str(value))), "--out"]
    with pytest.raises(SystemExit):
        main([*plain, str(tmp_path / "eager")])

    def fails(function, **options):
        raise RuntimeError("no compiler on this machine\nand more of it")

    monkeypatch.setattr(batched, "EagerStepper", ReplayStepper)  # as on a GPU
    monkeypatch.setattr(torch, "compile", fails)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended, pytest.warns(RuntimeWarning, match="the local step cannot be compiled"):
        main([*plain, str(tmp_path / "slow")])
    assert not ended.value.code
    note = "; the local step cannot be compiled and runs slower: no compiler on this machine"
    assert capsys.readouterr().out.count(note) == 1
    slow, eager = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("slow", "eager"))
    assert slow["engine_why"] == eager["engine_why"] + note
    assert slow["test_loss"] == pytest.approx(eager["test_loss"], rel=1e-5)


@pytest.mark.parametrize("was", [True, False])
def test_no_garbage_is_collected_within_a_capture(was: bool) -> None:
    (gc.enable if was else gc.disable)()
    try:
        with suppress(KeyError), uncollected():
            inside = gc.isenabled()
            raise KeyError  # an error must not leave it off
        assert (inside, gc.isenabled()) == (False, was)
    finally:
        gc.enable()
