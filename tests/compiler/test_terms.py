"""Numbers in generated text are the numbers themselves."""

from __future__ import annotations

import math

import pytest

from fedsmoo.compiler import NotCompiled


@pytest.mark.parametrize("value", [0.1, -1e-300, 1 / 3, 2.5, math.inf, -math.inf, 7, -3, True, False])
def test_a_number_reads_back_as_itself(device, value):
    from fedsmoo.compiler.codegen import VectorPass

    text = VectorPass._term(None, value, False)
    assert isinstance(text, str)
    assert eval(text) == value


def test_what_is_no_number_is_not_compiled(device):
    from fedsmoo.compiler.codegen import VectorPass

    assert math.isnan(eval(VectorPass._term(None, math.nan, False)))
    for thing in (None, "text", [1.0], 1j):
        with pytest.raises(NotCompiled, match="an argument"):
            VectorPass._term(None, thing, False)
