"""What travels, counted: the table of vectors per round and client, and bytes to a target."""

from __future__ import annotations

import numpy as np
import pytest

from fedsmoo import Config, FedsmooError, simulate
from fedsmoo.algorithms import ALGORITHMS, FedSMOO
from fedsmoo.data.check import from_arrays
from fedsmoo.experiment.compare import cells, common_target, human_bytes, row
from fedsmoo.experiment.ledger import ledger, paper_vectors, reached
from fedsmoo.experiment.loop import Record
from fedsmoo.experiment.resolve import assemble

# Vectors down and up, from the methods' papers: what a client must receive and send in every round.
TRAVELS = {
    "fedavg": (1, 1), "fedadam": (1, 1), "fedprox": (1, 1), "feddyn": (1, 1), "fedsam": (1, 1), "fedspeed": (1, 1),
    "scaffold": (2, 2), "fedgamma": (2, 2), "fedcm": (2, 1), "mofedsam": (2, 1), "fedsmoo": (2, 2),
    "fedavgm": (1, 1), "fedyogi": (1, 1), "fedadagrad": (1, 1), "fedlesam": (1, 1), "fedlesam-s": (2, 2),
    "fedlesam-d": (1, 1),
}  # fmt: skip
# The paper's own table, relative to FedAvg: FedCM and MoFedSAM count as double.
PAPER = {"fedavg": 1, "fedadam": 1, "scaffold": 2, "fedcm": 2, "feddyn": 1, "fedsam": 1, "mofedsam": 2, "fedsmoo": 2}
SIZE = 64 * 10 + 10  # softmax regression on 8x8 digits


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_of_a_run(dtype: str) -> None:
    width = {"float32": 4, "float64": 8}[dtype]
    for name, (down, up) in TRAVELS.items():
        run = simulate(
            "softmax", "digits", name, clients=5, cohort=3, rounds=2, local_steps=1, dtype=dtype, engine="batched"
        )
        for record in run.history:
            assert (record.bytes_down, record.bytes_up) == (3 * down * SIZE * width, 3 * up * SIZE * width), name
    assert set(TRAVELS) == set(ALGORITHMS)


@pytest.mark.parametrize(("wire", "vector"), [("exact", 4 * 4_234_826), ("int8", 4_234_826 + 2 * 16_543)])
def test_numbers_that_only_align_a_vector_do_not_travel(wire: str, vector: int) -> None:
    """ResNet-18-GN lives in 4 234 880 numbers, of which 4 234 826 are parameters (in 16 543 blocks of 256)."""
    x, y = np.zeros((20, 32, 32, 3), np.uint8), np.arange(20) % 10
    config = Config(algorithm="fedsmoo", model="resnet18_gn", clients=2, cohort=2, partition="iid", wire=wire,
                    engine="serial", device="cpu", rounds=5, eval_every=5)  # fmt: skip
    run = assemble(config, data=from_arrays(x, y, x, y))
    layout = run.setup.task.model.layout
    assert (layout.size, layout.count) == (4_234_880, 4_234_826)
    made = run.complete(run.prepare(), None, 0.0)  # the record of a round, without its training
    assert (made.bytes_up, made.bytes_down) == (2 * 2 * vector, 2 * 2 * vector)
    book = ledger(run.setup.algorithm, [made], layout.count, run.setup.task.model.full_size)
    if wire == "exact":
        assert book.bytes_full == 2 * 2 * 2 * 4 * run.setup.task.model.full_size  # the whole model, to the byte


def test_an_ablated_fedsmoo_is_charged_only_for_what_it_sends() -> None:
    assert len(FedSMOO(sam=False).down) == len(FedSMOO(sam=False).up) == 1
    assert len(FedSMOO(correct=False).down) == len(FedSMOO(correct=False).up) == 1
    assert len(FedSMOO(regularise=False).down) == 2


def test_the_paper_s_count() -> None:
    base = paper_vectors(ALGORITHMS["fedavg"]())
    assert {n: paper_vectors(ALGORITHMS[n]()) / base for n in PAPER} == PAPER


def record(number: int, accuracy: float | None, seconds: float = 1.0) -> Record:
    return Record(number, accuracy, 0.5, 0.5, 0.1, 0.1, [0], 10, 20, seconds, 0.1)


HISTORY = [record(1, 0.1), record(2, None), record(3, 0.5, 2.0), record(4, 0.4)]


def test_reached_counts_bytes_and_seconds_up_to_the_round() -> None:
    hit = reached(HISTORY, 0.5)
    assert (hit.round, hit.bytes, hit.seconds) == (3, 90, 4.0)
    assert reached(HISTORY, 0.6) is None


def test_a_row_over_seeds() -> None:
    other = [record(1, 0.2), record(2, 0.3)]
    made = row("FedAvg", [HISTORY, other], 0.5)
    assert made.accuracy == pytest.approx(0.35)
    assert made.accuracy_std == pytest.approx(0.1 / 2**0.5)  # 0.4 and 0.3: deviations of 0.05, one degree of freedom
    assert (made.rounds, made.bytes, made.reached, made.seconds) == (3, 90, 1, 3.5)
    assert cells(made) == ["FedAvg", "35.00 ± 7.07", "3 (1/2)", "90 B", "3.5"]
    assert cells(row("FedAvg", [other], 0.5)) == ["FedAvg", "30.00", "-", "-", "2.0"]
    assert common_target({"a": [HISTORY], "b": [other]}) == 0.36


def test_a_history_without_an_evaluation_is_refused_in_words() -> None:
    for make in (lambda h: row("FedAvg", [h], 0.5), lambda h: common_target({"a": [h]})):
        with pytest.raises(FedsmooError, match="none of the 1 rounds so far was evaluated"):
            make([record(1, None)])


def test_bytes_for_people() -> None:
    assert [human_bytes(n) for n in (999, 1500, 2.5e6, 7e15)] == ["999 B", "1.5 kB", "2.5 MB", "7000.0 TB"]
