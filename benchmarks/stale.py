"""Pause a worker at every file operation of a run, let another take the run over and finish it, let the first go on.

``python benchmarks/stale.py [--every N]``. Prints every pause that did harm, and how many held; fails if one did not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "runs" / "storage"))

from paused import operations, pause


def main(every: int) -> int:
    """Return the number of pauses that did harm."""
    failures = 0
    with tempfile.TemporaryDirectory() as root:
        for keep in (True, False):
            whole = Path(root, f"whole-{keep}")
            count = operations(whole, keep)
            outcomes = [pause(Path(root, f"{keep}-{n}"), n, whole, keep) for n in range(1, count + 1, every)]
            harmed = [o for o in outcomes if o.harm]
            for o in harmed:
                print(f"paused before {o.at}: {'; '.join(o.harm)}")
            taken, ends = sum(o.taken for o in outcomes), "kept" if keep else "removed"
            print(
                f"checkpoints {ends} at the end: {len(outcomes)} of {count} operations paused, {taken} taken over, "
                f"{len(outcomes) - len(harmed)} held"
            )
            failures += len(harmed)
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="only every so many operations")
    sys.exit(main(parser.parse_args().every) > 0)
