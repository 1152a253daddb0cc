"""``python -m fedsmoo``."""

from fedsmoo.cli import main

main()
