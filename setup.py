"""Put the measured results into the package, where ``fedsmoo table --no-run`` finds them outside a checkout."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

RESULTS = "*-seed*.json"  # one file for each run; benchmarks stay out
PLACE = "fedsmoo/paper/results"


def measured() -> list[Path]:
    """Return the results of the paper's tables: in their folder, and in those below it that are called like a table."""
    folders = ["", *sorted(path.stem for path in Path("src/fedsmoo/paper").glob("*.toml"))]
    return [path for name in folders for path in sorted(Path("results", name).glob(RESULTS))]


class WithResults(build_py):
    """Build the package as it is, and copy the results beside the paper's experiments."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # then they lie in the checkout
            for path in measured():
                to = Path(self.build_lib, PLACE, path.relative_to("results"))
                self.mkpath(str(to.parent))
                self.copy_file(str(path), str(to))


setup(cmdclass={"build_py": WithResults})
