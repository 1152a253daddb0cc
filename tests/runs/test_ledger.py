"""What travels, counted: the table of vectors per round and client, and bytes to a target."""

from __future__ import annotations

import numpy as np
import pytest

from fedsmoo import Config, FedsmooError, simulate
from fedsmoo.algorithms import ALGORITHMS, FedSMOO
from fedsmoo.data.check import from_arrays
from fedsmoo.runs.build import assemble
from fedsmoo.runs.record import Record
from fedsmoo.runs.traffic import first_reached, human_bytes, ledger, paper_vectors
from fedsmoo.sweeps.paired import common_target, make_row, make_rows, row_cells, verdict

# Vectors down and up, from the methods' papers: what a client must receive and send in every round.
TRAVELS = {
    "fedavg": (1, 1), "fedadam": (1, 1), "fedprox": (1, 1), "feddyn": (1, 1), "fedsam": (1, 1), "fedspeed": (1, 1),
    "scaffold": (2, 2), "fedgamma": (2, 2), "fedcm": (2, 1), "mofedsam": (2, 1), "fedsmoo": (2, 2),
    "fedavgm": (1, 1), "fedyogi": (1, 1), "fedadagrad": (1, 1), "fedlesam": (1, 1), "fedlesam-s": (2, 2),
    "fedlesam-d": (1, 1), "fedacg": (1, 1), "fednsam": (1, 1), "feddc": (2, 2), "pfedme": (1, 1),
    "fedgloss": (1, 1), "fedexp": (1, 1), "fednova": (1, 1), "median": (1, 1),
    "trimmed-mean": (1, 1), "krum": (1, 1), "multi-krum": (1, 1), "rfa": (1, 1), "norm-bounded": (1, 1),
    "fedwmsam": (3, 2), "fedswa": (1, 1), "fedmoswa": (2, 2), "ditto": (1, 1),
    "fedlc": (1, 1), "fedntd": (1, 1), "fedgmt": (2, 1), "moon": (1, 1), "qfedavg": (1, 1),
    "fedper": (0, 0), "fedrep": (0, 0),  # all of this model is its last layer
    "fedbn": (1, 1),  # but for the biases: this model has no norms
}  # fmt: skip
NUMBERS = {
    "fedwmsam": (1, 1),
    "fedexp": (0, 1),
    "fednova": (0, 1),
    "qfedavg": (0, 1),
}  # single ones, beside the vectors
# The paper's own table, relative to FedAvg: FedCM and MoFedSAM count as double.
PAPER = {"fedavg": 1, "fedadam": 1, "scaffold": 2, "fedcm": 2, "feddyn": 1, "fedsam": 1, "mofedsam": 2, "fedsmoo": 2}
SIZE = 64 * 10 + 10  # softmax regression on 8x8 digits


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_of_a_run(dtype: str) -> None:
    width = {"float32": 4, "float64": 8}[dtype]
    for name, (down, up) in TRAVELS.items():
        run = simulate(
            "softmax", "digits", name, clients=5, cohort=3, rounds=2, local_steps=1, dtype=dtype, engine="batched",
            **({"norms": "*bias"} if name == "fedbn" else {}),
        )  # fmt: skip
        singles = (-10, -10) if name == "fedbn" else NUMBERS.get(name, (0, 0))
        expected = tuple(3 * (n * SIZE + k) * width for n, k in zip((down, up), singles, strict=True))
        for record in run.history:
            assert (record.bytes_down, record.bytes_up) == expected, name
    assert set(TRAVELS) == set(ALGORITHMS)


def test_where_all_parameters_stay_nothing_travels() -> None:
    """FedPer leaves the last layer with the clients, which is all of softmax regression."""
    run = simulate("softmax", "digits", "fedper", clients=5, cohort=3, rounds=2, local_steps=1, holdout=0.2)
    setup = run.simulation.setup
    layout, staying = setup.task.model.layout, setup.masks.staying
    book = ledger(setup.algorithm, run.history, layout.count - staying, setup.task.model.full_size - staying)
    assert (layout.count - staying, book.bytes, book.bytes_paper, book.bytes_full) == (0, 0, 0, 0)
    assert (book.vectors_up, book.vectors_down, book.messages) == (1, 1, 6)


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


@pytest.mark.parametrize(
    ("method", "settings", "up", "down"),
    [
        ("fedavg", {}, 4 * SIZE, 4 * SIZE),
        ("fedcm", {}, 4 * SIZE, 2 * 4 * SIZE),
        ("fedavg", {"compression": "topk", "ratio": 0.1}, 65 * 8, 4 * SIZE),  # 65 numbers and their places
        ("fedcm", {"compression": "topk", "ratio": 0.1}, 65 * 8, 2 * 4 * SIZE),
        ("fednova", {}, 4 * SIZE + 4, 4 * SIZE),
    ],
)
def test_the_paper_counts_the_busier_way_twice_also_of_compressed_messages(
    method: str, settings: dict, up: int, down: int
) -> None:
    run = simulate("softmax", "digits", method, clients=5, cohort=3, rounds=2, local_steps=1, **settings)
    book = ledger(run.simulation.setup.algorithm, run.history, SIZE, SIZE)
    assert (book.bytes_up, book.bytes_down) == (6 * up, 6 * down)
    assert book.bytes_paper == 6 * 2 * max(up, down)
    hit = first_reached(run.history, 0.0)
    assert (hit.bytes, hit.bytes_paper) == (3 * (up + down), 3 * 2 * max(up, down))


def record(number: int, accuracy: float | None, seconds: float = 1.0) -> Record:
    return Record(number, accuracy, 0.5, 0.5, 0.1, 0.1, [0], 10, 20, seconds, 0.1)


HISTORY = [record(1, 0.1), record(2, None), record(3, 0.5, 2.0), record(4, 0.4)]


def test_reached_counts_bytes_and_seconds_up_to_the_round() -> None:
    hit = first_reached(HISTORY, 0.5)
    assert (hit.round, hit.bytes, hit.seconds) == (3, 90, 4.0)
    assert first_reached(HISTORY, 0.6) is None


def test_a_row_over_seeds() -> None:
    other = [record(1, 0.2), record(2, 0.3)]
    made = make_row("FedAvg", {0: HISTORY, 1: other}, 0.5)
    assert made.accuracy == pytest.approx((1 / 3 + 0.25) / 2)  # means of all evaluations, which are fewer than ten
    assert made.accuracy_std == pytest.approx((1 / 3 - 0.25) / 2**0.5)  # one degree of freedom
    assert (made.rounds, made.bytes, made.reached, made.seconds) == (3, 90, 1, 3.5)
    assert row_cells(made) == ["FedAvg", "2", "29.17 ± 5.89", "", "3 (1/2)", "90 B", "3.5"]
    assert row_cells(make_row("FedAvg", {0: other}, 0.5)) == ["FedAvg", "1", "25.00", "", "-", "-", "2.0"]
    assert common_target({"a": {0: HISTORY}, "b": {0: other}}) == 0.3


def ending(accuracy: float) -> list[Record]:
    """Twelve evaluations, of which the first two are not in the mean."""
    return [record(k + 1, 0.9 if k < 2 else accuracy) for k in range(12)]


def test_methods_are_compared_with_the_best_on_the_seeds_that_both_have() -> None:
    """Differences by hand: -4, -2, -3 have the mean -3 and the deviation 1; t of two degrees of freedom is 4.3027."""
    best = {0: ending(0.80), 1: ending(0.70), 2: ending(0.75), 7: ending(0.10)}
    other = {2: ending(0.72), 0: ending(0.76), 1: ending(0.68), 9: ending(0.99)}
    rows = make_rows({"A": other, "B": best}, 0.5)
    assert rows[1].behind is None
    assert rows[0].behind is not None
    assert rows[0].behind.seeds == (0, 1, 2)
    assert rows[0].behind.mean == pytest.approx(-0.03)
    assert rows[0].behind.half == pytest.approx(0.0430265 / 3**0.5 * 0.1 * 10, rel=1e-5)
    assert row_cells(rows[0])[3] == "-3.00 ± 2.48"
    assert verdict(rows) == "against B on the same seeds, ± a 95% interval (paired, t)"
    near = make_rows({"A": {**other, 0: ending(0.85)}, "B": best}, 0.5)
    assert verdict(near).endswith("; level with it: B") or verdict(near).endswith("; level with it: A")
    alone = make_rows({"A": {0: ending(0.76)}, "B": {0: ending(0.80)}}, 0.5)
    assert row_cells(alone[0])[3] == "-4.00"
    assert verdict(alone) == "against B on the same seeds; one seed carries no claim"
    assert verdict(make_rows({"A": {0: ending(0.76)}, "B": {1: ending(0.80)}}, 0.5)) == ""


def test_a_history_without_an_evaluation_is_refused_in_words() -> None:
    for make in (lambda h: make_row("FedAvg", {0: h}, 0.5), lambda h: common_target({"a": {0: h}})):
        with pytest.raises(FedsmooError, match="none of the 1 rounds so far was evaluated"):
            make([record(1, None)])


def test_bytes_for_people() -> None:
    assert [human_bytes(n) for n in (999, 1500, 2.5e6, 7e15)] == ["999 B", "1.5 kB", "2.5 MB", "7000.0 TB"]
