"""Explain why a round failed: whose code it was, and where. Bugs of our own keep their traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedsmoo.core import Algorithm, FedsmooError
from fedsmoo.core.blame import in_brief, path_in_package, place_of, stack_of, user_frames

# Where models are called.
MODEL = ("engines/oracles/", "engines/task.py", "models/", "kernels/")
WHOLE = "; if samples are whole numbers that the model multiplies, make floats of them"
MISFITS = (RuntimeError, TypeError, ValueError, IndexError)  # what a model raises that does not fit its data


def of_the_method(error: BaseException) -> str | None:
    """Return where a user's own method raised an error, and which; ``None`` if it was not the method."""
    stack = stack_of(error)
    for frame, _ in user_frames(stack):
        first = frame.f_code.co_varnames[:1]  # usually called self
        if any(isinstance(frame.f_locals.get(name), Algorithm) for name in first):
            return f"{place_of(stack)}: {in_brief(error)}"
    return None


def of_the_model(error: BaseException) -> str | None:
    """Return what a model or a loss raised, with the line of a user's file; ``None`` if it was neither."""
    stack = stack_of(error)
    if not any((path_in_package(frame.f_code.co_filename) or "").startswith(MODEL) for frame, _ in stack):
        return None
    place = place_of(stack)
    return f"{place}: {in_brief(error)}" if place else in_brief(error) if isinstance(error, MISFITS) else None


@contextmanager
def explained(engine: str, first: bool = False) -> Iterator[None]:
    """Turn errors of a user's own code into a FedsmooError of one line, inside this context.

    In a ``first`` round, so are errors of a model that does not fit its data. All others, such as our own bugs, keep
    their traceback.
    """
    try:
        yield
    except (FedsmooError, torch.OutOfMemoryError):
        raise
    except Exception as e:
        if method := of_the_method(e):
            raise FedsmooError(method) from e
        model = of_the_model(e)
        if model and first:
            whole = WHOLE if "Long" in model and "Float" in model else ""
            raise FedsmooError(f"the {engine} engine cannot train this model on these data. {model}{whole}") from e
        if model and place_of(stack_of(e)):
            raise FedsmooError(model) from e
        raise
