"""Lines that say how far rounds are, by a clock of the test's own."""

from __future__ import annotations

import pytest

from fedsmoo.runs.progress import ProgressLines, duration, round_in_words
from fedsmoo.runs.record import Record


def record(number: int, accuracy: float | None = None, loss: float | None = 1.5) -> Record:
    return Record(number, accuracy, None, loss, None, 0.1, [0], 1, 1, 0.1, 0.0)


@pytest.mark.parametrize(
    ("total", "seconds", "said"),
    [
        (4, 12.0, [1, 2, 3, 4]),  # slow rounds: each has its line
        (35, 1.0, [10, 20, 30, 35]),
        (9, 4.0, [3, 6, 9]),
        (3, 0.001, [3]),  # the last one in any case
    ],
)
def test_at_most_a_line_in_ten_seconds_and_the_last(total: int, seconds: float, said: list[int]) -> None:
    now, out = 1000.0, list[str]()
    lines = ProgressLines(total, say=out.append, clock=lambda: now)
    for _ in range(total):
        now += seconds
        lines.moved(["accuracy 50.00%"])
    assert out == [
        f"round {k} of {total}: accuracy 50.00%, {seconds:.3f} s a round, {round((total - k) * seconds)} s left"
        for k in said
    ]


def test_rounds_found_done_count_but_say_nothing_of_the_pace() -> None:
    now, out = 0.0, list[str]()
    lines = ProgressLines(100, 40, out.append, last=False, clock=lambda: now)
    lines.skip(10)
    now = 20.0
    lines.moved([])
    lines.skip(48)
    lines.moved([])  # the last one, which has no line where others say that runs are done
    assert out == ["round 51 of 100: 20.000 s a round, 16 min 20 s left"]


def test_a_round_without_a_test_has_the_last_one_s() -> None:
    assert round_in_words(record(1, 0.5)) == ["accuracy 50.00%", "loss 1.5000"]
    assert round_in_words(record(2), "accuracy 50.00%") == ["accuracy 50.00%", "loss 1.5000"]
    assert round_in_words(record(1, None, None)) == []
    words = {0.4: "0 s", 59.6: "1 min 0 s", 61: "1 min 1 s", 3600: "1 h 0 min", 86400: "24 h 0 min"}
    assert {s: duration(s) for s in words} == words
