"""A reply has so many bytes in all and no more, whatever they are of."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedsmoo[flower]'")

from fedsmoo.deploy.judge import HEADER, ROOM, Expectation, Reply, judge
from fedsmoo.deploy.wire import Refusal

WANT = Expectation("s", 3, 1, 20, 5, ("w", "n"), 1000, torch.float32, "exact", {"n": 1})
FACTS = {"session": "s", "number": 3, "client": 1, "version": 4}
NUMBERS = {"loss": 1.0, "drift": 0.5, "samples": 20, "steps": 5}


def npy(values: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


ARRAYS = {"w": npy(np.ones(1000, np.float32)), "n": npy(np.ones(1, np.float32))}


def test_an_honest_reply_is_far_below_the_limit() -> None:
    assert WANT.most == ROOM + 2 * HEADER + 4 * 1001
    assert judge(Reply(FACTS, NUMBERS, ARRAYS), WANT).up.w.tolist() == [1.0] * 1000


@pytest.mark.parametrize(
    "changed",
    [
        {"arrays": {**ARRAYS, "more": bytes(ROOM + 4000)}},
        {"arrays": {**ARRAYS, "w": bytes(ROOM + 10_000)}},
        {"facts": {**FACTS, "detail": "x" * (ROOM + 4000)}},
        {"facts": {"refused": "client error", "detail": "x" * (ROOM + 9000)}},
        {"facts": {**FACTS, "x" * (ROOM + 4000): 1}},
        {"numbers": {**NUMBERS, "many": [0.0] * (ROOM // 8 + 500)}},
        {"numbers": {**NUMBERS, **{f"n{k}": 0.0 for k in range(ROOM // 8)}}},
    ],
)
def test_a_reply_that_is_too_large_in_all_is_refused_in_a_line(changed: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=r"^too large: [0-9,]+ bytes, more than ") as said:
        judge(Reply(**{"facts": FACTS, "numbers": NUMBERS, "arrays": ARRAYS, **changed}), WANT)
    assert said.value.reason == "too large"
    assert "\n" not in str(said.value)
