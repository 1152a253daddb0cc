"""What a launcher such as ``torchrun`` says in the environment: how many processes (ranks) there are, which is this.

Knows no PyTorch, so that commands can ask before it is imported.
"""

from __future__ import annotations

import os

from fedsmoo.core.errors import FedsmooError


def environment_int(name: str, default: int) -> int:
    """Return a whole number that a launcher set in the environment.

    Raises:
        FedsmooError: if it is none.
    """
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as e:
        raise FedsmooError(f"the environment variable {name} is {text!r}, but must be a whole number") from e


def launched() -> bool:
    """Return whether a launcher such as ``torchrun`` started more than one process."""
    return environment_int("WORLD_SIZE", 1) > 1 and "RANK" in os.environ


def world() -> int:
    """Return the number of ranks."""
    return environment_int("WORLD_SIZE", 1) if launched() else 1


def is_writer() -> bool:
    """Return whether this process writes files and prints: the only one, or rank 0."""
    return not launched() or environment_int("RANK", 0) == 0


def require_single_process(what: str) -> None:
    """Refuse to do in every rank what one process should do once.

    Raises:
        FedsmooError: if there are several ranks.
    """
    if launched():
        raise FedsmooError(f"{what} runs in one process, not under torchrun: only 'fedsmoo run' and 'resume' use ranks")
