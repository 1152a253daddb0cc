"""``fedsmoo sweep --measured``: what has a result is left out, and that is said."""

from pathlib import Path

from .conftest import Call

GRID = """
model = "softmax"
clients = 3
cohort = 2
rounds = 1
local_steps = 1
device = "cpu"
engine = "serial"
[methods.FedAvg]
[methods.FedSAM]
rho = [0.1, 0.2]
"""


def test_the_command_says_what_it_leaves_out(call: Call) -> None:
    Path("grid.toml").write_text(GRID)
    assert call("sweep", "grid.toml", "--to", "results").code == 0
    next(Path("results").glob("fedsam*")).unlink()
    words = "sweep", "grid.toml", "--out", "elsewhere", "--measured", "results"
    told = call(*words, "--dry-run")
    assert told.err.startswith("fedsmoo: 2 of 3 runs are left out: their results lie below results\n")
    assert "1 run, 0 done" in told.err
    assert "1 finished, 0 failed, 0 left" in call(*words, "--to", "results").out
    done = call(*words)
    assert (done.code, done.out) == (0, "0 finished, 0 failed, 0 left; runs in elsewhere\n")
