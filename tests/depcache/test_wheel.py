# SPDX-License-Identifier: Apache-2.0
"""A client's wheel is small, plugin and model are wheels of their own, the source is whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import depcache
from scripts.wheel_check import MAX_WHEEL_BYTES

ROOT = Path(__file__).parents[2]
PACKAGED = ("depcache", "flashinfer_masks")
LICENSES = ("LICENSE", "NOTICE")


def read_project(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))


def build(folder: Path, made: Path) -> Path:
    """Returns the wheel of the project in a folder, built with the setuptools that is here."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(made)]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = made.glob("*.whl")
    return wheel


def copy_tree(source: Path, target: Path) -> None:
    leave_out = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(source, target, ignore=leave_out)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the wheels are made of: building leaves folders beside them."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", *LICENSES):
        shutil.copyfile(ROOT / name, folder / name)
    for name in (*PACKAGED, "sglang_patches"):
        copy_tree(ROOT / name, folder / name)
    copy_tree(ROOT / "models", folder / "models")
    return folder


def test_the_wheel_of_depcache_is_small(checkout: Path, tmp_path: Path) -> None:
    wheel = build(checkout, tmp_path)
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGED)
    assert not [name for name in names if name.endswith((".safetensors", "tokenizer.json"))]
    assert "depcache/prompt/schema.json" in names
    assert "depcache/demo/wellknown/triples.tsv" in names
    (points,) = [name for name in names if name.endswith("/entry_points.txt")]
    assert "sglang" not in zipfile.ZipFile(wheel).read(points).decode()


def test_the_wheel_of_the_plugin_is_all_of_it_with_both_entry_points(
    checkout: Path, tmp_path: Path
) -> None:
    wheel = zipfile.ZipFile(build(checkout / "sglang_patches", tmp_path))
    (points,) = [name for name in wheel.namelist() if name.endswith("/entry_points.txt")]
    said = wheel.read(points).decode()
    assert "[sglang.srt.plugins]\ndepcache = sglang_patches.plugin:register" in said
    assert "[sglang.srt.platforms]\ndepcache = sglang_patches.platform:activate" in said
    leave_out = {"build", "depcache_sglang.egg-info", "__pycache__", "pyproject.toml", *LICENSES}
    ours = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "sglang_patches").rglob("*")
        if file.is_file() and not leave_out & set(file.parts)
    }
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == ours


@pytest.mark.parametrize("folder", [".", "sglang_patches", "models/tiny"])
def test_each_wheel_has_the_licence(checkout: Path, tmp_path: Path, folder: str) -> None:
    wheel = zipfile.ZipFile(build(checkout / folder, tmp_path))
    for name in LICENSES:
        (found,) = [each for each in wheel.namelist() if each.endswith(f"/licenses/{name}")]
        assert wheel.read(found) == (ROOT / name).read_bytes()


def test_plugin_and_client_are_of_one_release() -> None:
    plugin, client = read_project("sglang_patches")["project"], read_project(".")["project"]
    assert plugin["version"] == depcache.__version__
    assert f"depcache[graph]=={depcache.__version__}" in plugin["dependencies"]
    assert client["optional-dependencies"]["server"] == [f"depcache-sglang=={depcache.__version__}"]


def test_the_wheel_of_depcache_tiny_is_the_weights_and_their_card(
    checkout: Path, tmp_path: Path
) -> None:
    wheel = build(checkout / "models" / "tiny", tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    found = {name for name in names if ".dist-info/" not in name}
    model = {f"model/{file.name}" for file in (ROOT / "models/tiny/depcache_tiny/model").iterdir()}
    ours = {"__init__.py", "README.md", "py.typed", *model}
    assert found == {f"depcache_tiny/{name}" for name in ours}


def test_the_source_distribution_has_all_that_is_tracked(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("what belongs to the source is asked of git, and this is no checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    tracked = [name for name in listed.stdout.decode().split("\0") if name]
    for name in tracked:
        if (ROOT / name).exists():  # not deleted since
            (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / "source" / name)
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", str(tmp_path / "source")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (tmp_path / "source" / "dist").iterdir()
    with tarfile.open(made) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    ours = {name for name in tracked if name[0] != "." or name.startswith((".ci", ".python"))}
    others = ("models/tiny/control/", "models/tiny/flat/")
    compared_with = {name for name in ours if name.startswith(others)}
    assert ours - packed == compared_with
