"""Notes which functions of the package a process runs, while the tests run once; every Python beneath finds this file.

It is copied beside the package. A line ``test<TAB>file:function`` goes to the file that ``MUTANTS_TRACE`` names as soon
as a function is met first, because some tests kill their processes.
"""

import os
import sys
import threading

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fedsmoo") + os.sep
seen: set = set()
others: set = set()  # names of files that are not ours, so that most calls cost one look


def begin(test: str) -> None:
    """From now on what runs, runs for this test."""
    global current
    current = test
    seen.clear()


def note(frame, event, argument) -> None:
    """Called for every call of a function; nothing inside a function is traced."""
    code = frame.f_code
    if code in seen or code.co_filename in others:
        return
    if not code.co_filename.startswith(PACKAGE):
        others.add(code.co_filename)
        return
    seen.add(code)
    name = getattr(code, "co_qualname", code.co_name)
    os.write(out, f"{current}\tsrc/fedsmoo/{code.co_filename[len(PACKAGE) :]}:{name}\n".encode())


if "MUTANTS_TRACE" in os.environ:
    out = os.open(os.environ["MUTANTS_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    current = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    sys.settrace(note)
    threading.settrace(note)
