"""Numbers in generated text are the numbers themselves."""

from __future__ import annotations

import math

import pytest

from fedsmoo.compiler import NotCompiled

NUMBERS = [0.1, -1e-300, 1 / 3, 2.5, math.inf, -math.inf, 7, -3, True, False]


@pytest.mark.parametrize("value", NUMBERS)
def test_a_number_reads_back_as_itself(device, value):
    from fedsmoo.compiler.codegen import number

    text = number(value, "tl.float32")
    assert isinstance(text, str)
    assert eval(text) == value


@pytest.mark.parametrize("value", [v for v in NUMBERS if isinstance(v, float)])
def test_float64_is_said_where_triton_would_round(device, value):
    from fedsmoo.compiler.codegen import number

    plain = number(value, "tl.float32")
    assert number(value, "tl.float64") == f"tl.full((), {plain}, tl.float64)"


def test_what_is_no_number_is_not_compiled(device):
    from fedsmoo.compiler.codegen import number

    assert math.isnan(eval(number(math.nan, "tl.float32")))
    for thing in (None, "text", [1.0], 1j):
        with pytest.raises(NotCompiled, match="an argument"):
            number(thing, "tl.float32")
