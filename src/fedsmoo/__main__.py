"""Where the program starts: ``fedsmoo`` and ``python -m fedsmoo``."""

from __future__ import annotations

import signal


def main() -> None:
    """The command line. Until it is imported there is nothing to save, and Ctrl-C ends the program without a word."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # a program started in the background may have been told to ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fedsmoo.cli import main as command

    signal.signal(signal.SIGINT, usual)
    command()


if __name__ == "__main__":
    main()
