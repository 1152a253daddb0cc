"""Put the measured results into the package, where ``fedsmoo table --no-run`` finds them outside a checkout."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

RESULTS = "*-seed*.json"  # one file for each run; benchmarks and what was superseded stay out
PLACE = "fedsmoo/paper/results"


class WithResults(build_py):
    """Build the package as it is, and copy the results beside the paper's experiments."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # then they lie in the checkout
            self.mkpath(str(Path(self.build_lib, PLACE)))
            for path in sorted(Path("results").glob(RESULTS)):
                self.copy_file(str(path), str(Path(self.build_lib, PLACE, path.name)))


setup(cmdclass={"build_py": WithResults})
