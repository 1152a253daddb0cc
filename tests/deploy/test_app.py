"""The app that ``fedsmoo deploy init`` writes, by the checks that Flower makes before it runs or publishes one."""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

from fedsmoo.core import FedsmooError
from fedsmoo.deploy.app import CLIENT, FLOWER, SERVER, write_app

config_of = pytest.importorskip("flwr.common.config")
formats = pytest.importorskip("flwr.supercore.fab_format_version")
constants = pytest.importorskip("flwr.supercore.constant")
ROOT = Path(__file__).parents[2]


def settings(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())


@pytest.mark.parametrize("publisher", [None, "clinic"])
def test_flower_takes_the_app(publisher: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "digits-federation"
    write_app(folder, "digits-federation", 4, publisher)
    config = settings(folder)
    assert config_of.validate_config(config, check_module=True, project_dir=folder) == (True, [], [])
    assert config["tool"]["flwr"]["app"]["config"]["clients"] == 4


def test_an_app_to_publish_has_licence_publisher_target_and_what_it_needs(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    written = write_app(folder, "digits-federation", 3, "clinic")
    config = settings(folder)
    about = formats.normalize_and_validate_fab_format(config)
    assert about.fab_format_version == 1
    assert config["tool"]["flwr"]["app"]["publisher"] == "clinic"
    assert config["tool"]["flwr"]["app"]["flwr-version-target"] == FLOWER
    names = [path.relative_to(folder).as_posix() for path in written]
    formats.validate_fab_files_for_format(config, names)  # raises without the licence
    with pytest.raises(ValueError, match="license"):
        formats.validate_fab_files_for_format(config, [name for name in names if name != "LICENSE"])
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert config["project"]["license"]["file"] in constants.APP_PUBLISH_ALLOWED_LICENSE_FILES
    assert 0 < len(config["project"]["description"]) <= 200


def test_the_target_is_the_release_that_is_installed_with_us() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["flower"] == [f"flwr[simulation]=={FLOWER}"]


def test_an_app_for_ones_own_machines_downloads_nothing(tmp_path: Path) -> None:
    write_app(tmp_path / "app", "clinic")
    assert settings(tmp_path / "app")["project"]["dependencies"] == []
    with pytest.raises(FedsmooError):
        write_app(tmp_path / "other", "clinic", 3, "a/b")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("text", [CLIENT, SERVER], ids=["client", "server"])
def test_what_an_app_imports_is_there(text: str) -> None:
    """Apps that people have made go on with these names, whatever becomes of others."""
    found = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    assert len(found) == 4
    for node in found:
        module = importlib.import_module(node.module or "")
        assert [name.name for name in node.names if not hasattr(module, name.name)] == []
