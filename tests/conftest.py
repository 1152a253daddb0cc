"""Settings of all tests: which files come first, what nothing waits for (disk, old objects), a Ctrl-C that is heard."""

from __future__ import annotations

import gc
import logging
import os
import signal
import tempfile

import pytest

# As `make test` sets it, for a plain `pytest`, too: runs in several processes are compared to the bit.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A file goes to one process as a whole (see the Makefile). The longest come first; short ones fill up the end.
LONGEST = (
    "test_page.py",
    "test_engines_agree.py",
    "test_passes.py",
    "test_ranks.py",
    "test_contract.py",
    "test_boxes.py",
    "test_simulation.py",
    "test_notebooks.py",
    "test_told.py",
    "test_known_answers.py",
    "test_methods.py",
    "test_table.py",
    "test_job.py",
    "test_documents.py",
    "test_strangers.py",
    "test_kill.py",
    "test_random.py",
    "test_tables.py",
    "test_compiles.py",
    "test_trouble.py",
    "test_repeat.py",
    "test_rooms.py",
    "test_fuzz.py",
    "test_members.py",
    "test_store.py",
    "test_reference.py",
    "test_blocks.py",
    "test_checkpoint.py",
    "test_own_losses.py",
    "test_own_methods.py",
    "test_commands.py",
    "test_power_cut.py",
    "test_quantised.py",
    "test_statistics.py",
    "test_recording.py",
    "test_start.py",
    "test_traced.py",
    "test_slips.py",
    "test_models.py",
    "test_bad_input.py",
    "test_any_layers.py",
    "test_drill.py",
    "test_partition.py",
    "test_threads.py",
    "test_compare_again.py",
)

# Collections of garbage look at everything that was made since the last: rarely is enough, and not while nothing but
# modules is made, which all stay.
gc.set_threshold(20_000, 20, 20)
gc.disable()

# A process that is killed loses nothing that it wrote, flushed or not; only a power cut would. That all is flushed, and
# in the right order, is tested by tests that put a function of their own here.
os.fsync = os.fstat  # which refuses what is no open file, too

# What tests run is no code of whoever runs the tests: their list of trusted files is a list of its own.
CONFIGURATION = tempfile.TemporaryDirectory(prefix="fedsmoo-tests-")
os.environ["XDG_CONFIG_HOME"] = CONFIGURATION.name

# PyTorch writes what it traces, with the stack of every call, for anybody who listens; pytest would, for nobody.
logging.getLogger("torch.__trace").addHandler = lambda handler: None

# A shell lets what it starts in the background ignore Ctrl-C; tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gc.enable()
    rank = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


@pytest.fixture(scope="module", autouse=True)
def settled() -> None:
    """Set aside what is there before a file's first test: a sweep's collections need not look at a million objects."""
    gc.collect()
    gc.freeze()
