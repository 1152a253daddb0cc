"""Where the program starts: ``fedsmoo`` and ``python -m fedsmoo``."""

from __future__ import annotations

from fedsmoo.commands.interrupt import nothing_to_save


def main() -> None:
    """Import the command line, and run it."""
    with nothing_to_save():
        from fedsmoo.cli import main as command

    command()


if __name__ == "__main__":
    main()
