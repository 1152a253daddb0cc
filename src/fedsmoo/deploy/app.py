"""A ready Flower app in a folder: settings, a client with a data hook to fill in, a server."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from fedsmoo.core import FedsmooError
from fedsmoo.deploy.store import checked_name
from fedsmoo.runs.storage.files import make_folder, write_durably
from fedsmoo.version import __version__

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "A federation that trains with fedsmoo"
{terms}

[tool.hatch.build.targets.wheel]
packages = ["federation"]

[tool.flwr.app]
{hub}

[tool.flwr.app.components]
serverapp = "federation.server:app"
clientapp = "federation.client:app"

# Any setting of `fedsmoo run` (its --help lists them), with dashes; wire and those below it only a network needs.
# To change one that stands here for one run: flwr run . --run-config "rounds=50 lr=0.05"
[tool.flwr.app.config]
name = "{name}"
algorithm = "fedsmoo"
model = "mlp"
dataset = "digits"
partition = "dirichlet"
u = 0.5
clients = {clients}
cohort = {clients}
rounds = 3
local-epochs = 2
batch-size = 32
lr = 0.1
lr-decay = 0.998
weight-decay = 0.001
seed = 0
device = "cpu"
wire = "exact"
min-replies = 0
norm-bound = 100.0
max-update = 0.0
max-samples = 1000000
max-share = 0.5
aggregate = "mean"
trim = 0.2
client-keys = "bind"
forget = ""
keep-states = 3
round-timeout = 600.0
lost-state = "refuse"
server-folder = ""
state-folder = ""

# Hyper-parameters of the method, where they differ from its defaults (fedsmoo show fedsmoo):
# [tool.flwr.app.config.algorithm-options]
# r = 0.1
# beta = 10.0
"""

# Of an app for one's own machines.
OWN = """\
license = "Apache-2.0"
# Every machine has fedsmoo[flower] installed already. What is listed here would be downloaded by every node.
dependencies = []"""
OWN_HUB = 'publisher = "fedsmoo"'

# Of an app that can be published on Flower's hub, which wants a licence's text, a target and what must be installed.
PUBLIC = """\
license = {{ file = "LICENSE" }}
dependencies = ["flwr[simulation]>={flower}", "fedsmoo[flower]>={version}"]"""
PUBLIC_HUB = """\
publisher = "{publisher}"
fab-format-version = 1
flwr-version-target = "{flower}\""""
FLOWER = "1.41.0"  # the release that fedsmoo[flower] installs
README = """\
# {name}

A federation that trains with fedsmoo: FedSMOO, or any of its other methods, by the setting `algorithm`. As it is, it
divides the digits data set among {clients} clients; `federation/client.py` is where your own data goes.

```sh
flwr run . --run-config "algorithm='scaffold' rounds=10"
```
"""

CLIENT = '''\
"""The client of this federation: it runs on every node, and only what it returns leaves the node."""

from fedsmoo.data.dataset import Dataset
from fedsmoo.deploy.client import share_of
from fedsmoo.deploy.flower import client_app
from fedsmoo.runs.config import Config


def data(client: int, config: Config) -> Dataset:
    """This node's own samples. Put your own loading here, for example

    return fedsmoo.data.check.from_arrays(x_train, y_train, x_test, y_test)

    with images as uint8 [N, H, W, 1 or 3] or other samples as float [N, ...], and labels as whole numbers. Images are
    normalised: give every node and the server the same mean=[...] and std=[...], of values in 0..1. The test part is
    not used on a node; its largest label, like that of the training part, counts for the number of classes.
    """
    return share_of(client, config)  # a share of a public data set, to try things out


app = client_app(data=data)
'''

SERVER = '''\
"""The server of this federation: it sees vectors and counts, never samples."""

from fedsmoo.data.dataset import Dataset
from fedsmoo.deploy.client import whole
from fedsmoo.deploy.flower import server_app
from fedsmoo.runs.config import Config


def test(config: Config) -> Dataset:
    """The test data on which the global model is scored after every round, in the shape of the clients' samples."""
    return whole(config)


app = server_app(test=test)
'''

OFFLINE = """\
# Source this before any of Flower's programs: . offline.sh
# No telemetry, no update check, and no package is downloaded when an app starts.
export FLWR_TELEMETRY_ENABLED=0
export FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export RAY_USAGE_STATS_ENABLED=0
"""

IGNORE = "__pycache__/\n*.key\n*.pem\n*.db\ncertificates/\nkeys/\n"


def licence() -> str:
    """Return the text of fedsmoo's licence, from the installed package or the checkout."""
    kept = Path(__file__).parents[3] / "LICENSE"
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    found = [f for f in importlib.metadata.files("fedsmoo") or () if f.name == "LICENSE"]
    if not found:
        raise FedsmooError("the text of fedsmoo's licence is not installed: install it by pip, then do this again")
    return found[0].read_text(encoding="utf-8")


def to_publish(name: str, clients: int, publisher: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """Return what stands in an app's settings, and which files it has besides, to be published by somebody or not."""
    if publisher is None:
        return {"terms": OWN, "hub": OWN_HUB}, {}
    checked_name(publisher)
    words = {"flower": FLOWER, "version": __version__, "publisher": publisher}
    files = {"LICENSE": licence(), "README.md": README.format(name=name, clients=clients)}
    return {"terms": PUBLIC.format(**words), "hub": PUBLIC_HUB.format(**words)}, files


def write_app(folder: Path, name: str, clients: int = 3, publisher: str | None = None) -> list[Path]:
    """Write an app into a new or empty folder, to be published by ``publisher`` if there is one."""
    checked_name(name)
    if clients < 1:
        raise FedsmooError(f"a federation of {clients} clients: there must be one at least")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedsmooError(f"{folder} is there already and not an empty folder: choose another, nothing was written")
    words, more = to_publish(name, clients, publisher)
    files = {
        "pyproject.toml": PYPROJECT.format(name=name, clients=clients, **words),
        "federation/__init__.py": '"""A federation."""\n',
        "federation/client.py": CLIENT,
        "federation/server.py": SERVER,
        "offline.sh": OFFLINE,
        ".gitignore": IGNORE,
        **more,
    }
    try:
        for path, text in files.items():
            make_folder((folder / path).parent)
            write_durably(folder / path, text)
    except OSError as e:
        raise FedsmooError(f"cannot write the app into {folder}: {e.strerror}") from e
    return [folder / path for path in files]
