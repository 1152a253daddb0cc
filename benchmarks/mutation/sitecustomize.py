"""Notes which functions of the package a process runs, while the tests run once; every Python beneath finds this file.

It is copied beside the package. A line ``test<TAB>file:function`` goes to the file that ``MUTANTS_TRACE`` names as soon
as a function is met first, because some tests kill their processes.
"""

import os
import sys
import threading

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fedsmoo") + os.sep
MONITORING = getattr(sys, "monitoring", None)  # from Python 3.12 on: a function that was noted costs nothing any more
seen: set = set()
others: set = set()  # names of files that are not ours, so that most calls cost one look


def begin(test: str) -> None:
    """From now on what runs, runs for this test."""
    global current
    current = test
    seen.clear()
    if MONITORING:
        MONITORING.restart_events()


def note(frame, event, argument) -> None:
    """Called for every call of a function; nothing inside a function is traced."""
    code = frame.f_code
    if code in seen or code.co_filename in others:
        return
    if not code.co_filename.startswith(PACKAGE):
        others.add(code.co_filename)
        return
    seen.add(code)
    write(code)


def met(code, offset):
    """Called for the first call of a function."""
    if code.co_filename.startswith(PACKAGE):
        write(code)
    return MONITORING.DISABLE


def write(code) -> None:
    """Note one function for the test of the moment."""
    name = getattr(code, "co_qualname", code.co_name)
    os.write(out, f"{current}\tsrc/fedsmoo/{code.co_filename[len(PACKAGE) :]}:{name}\n".encode())


if "MUTANTS_TRACE" in os.environ:
    out = os.open(os.environ["MUTANTS_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    current = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if MONITORING:
        MONITORING.use_tool_id(MONITORING.COVERAGE_ID, "mutants")
        MONITORING.register_callback(MONITORING.COVERAGE_ID, MONITORING.events.PY_START, met)
        MONITORING.set_events(MONITORING.COVERAGE_ID, MONITORING.events.PY_START)
    else:
        sys.settrace(note)
        threading.settrace(note)
