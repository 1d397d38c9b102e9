"""What is built and installed: versions from tags, the files of wheel and sdist, and the wheel in an empty environment.

Everything is built from a copy, since a build writes the version it found into the tree. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import rooflight
from rooflight._version import UNBUILT
from rooflight.models.registry import NAMES
from tests.fixtures.paths import ROOT

pytestmark = pytest.mark.slow

VERSION = "9.8.7"
PRETENDED = {"SETUPTOOLS_SCM_PRETEND_VERSION": VERSION}
BESIDE = ["CHANGELOG.md", "LICENSE", "README.md", "constraints.txt", "pyproject.toml"]


def run(*command, cwd, check=True, **environment) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    ours = {
        key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "SETUPTOOLS_SCM_", "PYTHON"))
    }
    return subprocess.run(words, cwd=cwd, check=check, capture_output=True, text=True, env={**ours, **environment})


def files_of_the_package() -> set[str]:
    """What is, or would be, committed below src: `rooflight/...`."""
    if not (ROOT / ".git").exists():
        pytest.skip("only a clone knows which files are its own")
    listed = run("git", "ls-files", "-co", "--exclude-standard", "-z", "src/rooflight", cwd=ROOT).stdout
    return {name.removeprefix("src/") for name in listed.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A source archive: the files that git knows, without git."""
    folder = tmp_path_factory.mktemp("tree")
    for name in [*(f"src/{name}" for name in files_of_the_package()), *BESIDE, ".gitignore"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(tree, tmp_path_factory):
    """sdist and wheel, the wheel out of the sdist, as `python -m build` makes them."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, tree, cwd=folder, **PRETENDED)
    return folder / f"rooflight-{VERSION}.tar.gz", folder / f"rooflight-{VERSION}-py3-none-any.whl"


# --- versions ---


def version_in(folder: Path) -> str:
    return run(sys.executable, "-m", "hatchling", "version", cwd=folder).stdout.strip()


def test_versions_come_from_tags(tree, tmp_path):
    folder = tmp_path / "clone"
    shutil.copytree(tree, folder)
    assert version_in(folder) == UNBUILT, "an archive without git"

    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        run("git", *who, *words, cwd=folder)

    git("init", "-q")
    git("add", "pyproject.toml", ".gitignore")
    git("commit", "-qm", "one")
    assert re.fullmatch(r"0\.1\.0\.dev\d+\+g[0-9a-f]+(\.d\d+)?", version_in(folder)), "a clone without tags"
    git("add", "-A")
    git("commit", "-qm", "two")
    git("tag", "v1.2.3")
    assert version_in(folder) == "1.2.3"
    git("commit", "-q", "--allow-empty", "-m", "three")
    assert version_in(folder).startswith("1.2.4.dev1+g")
    run("git", "clone", "-q", "--depth", "1", folder.as_uri(), tmp_path / "shallow", cwd=tmp_path)
    assert re.match(r"\d+\.\d+\.\d+\.dev\d+\+g", version_in(tmp_path / "shallow"))


def test_the_fallback_is_said_once():
    """Twice in fact, for the build and for a tree that was never built; so that they cannot differ, here."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["hatch"]["version"]["fallback-version"] == UNBUILT
    assert settings["project"]["dynamic"] == ["version"]


def test_one_version_everywhere():
    told = run(sys.executable, "-m", "rooflight", "--version", cwd=ROOT).stdout
    assert told == f"rooflight, version {rooflight.__version__}\n"
    assert rooflight.estimate("mnist-cnn").header.rooflight == rooflight.__version__


# --- what is in them ---


def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
        metadata = Parser().parsestr(wheel.read(f"rooflight-{VERSION}.dist-info/METADATA").decode())
        scripts = wheel.read(f"rooflight-{VERSION}.dist-info/entry_points.txt").decode()
    inside = {name for name in names if not name.startswith(f"rooflight-{VERSION}.dist-info/")}
    assert inside == files_of_the_package() | {"rooflight/_built.py"}
    assert f"rooflight-{VERSION}.dist-info/licenses/LICENSE" in names
    assert f"rooflight-{VERSION}.dist-info/licenses/src/rooflight/hardware/published/NOTICE.md" in names
    assert "rooflight/py.typed" in inside
    for data in (
        "hardware/specs/h200.toml",
        "hardware/published/steps.json.gz",
        "hardware/published/NOTICE.md",
        "recordings/h200/resnet50-train-fp32.json.gz",
    ):
        assert f"rooflight/{data}" in inside
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == (
        "rooflight",
        VERSION,
        "Apache-2.0",
    )
    assert {"vision", "timm", "hf", "pandas", "nvidia", "slurm"} <= set(metadata.get_all("Provides-Extra"))
    assert "rooflight = rooflight.commands.main:main" in scripts


def test_the_sdist_holds_what_makes_the_wheel(built):
    with tarfile.open(built[0]) as sdist:
        names = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    package = {name for name in names if name.startswith("src/")}
    assert package == {f"src/{name}" for name in files_of_the_package()} | {"src/rooflight/_built.py"}
    assert names - package == {*BESIDE, ".gitignore", "PKG-INFO"}


# --- installed ---


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The `bin` of an empty environment with the wheel in it. What rooflight needs is borrowed from the one that runs
    the tests, behind the wheel, and without its own rooflight: a folder that a .pth file adds has its own ignored."""
    home = tmp_path_factory.mktemp("pipx") / "rooflight"
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home.parent)
    python = home / "bin" / "python"
    offline = ("--no-index", "--no-deps", "--disable-pip-version-check", "-q")
    run(sys.executable, "-m", "pip", "--python", python, "install", *offline, built[1], cwd=home.parent)
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).stdout.strip())
    borrowed = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (own / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return home / "bin"


def test_it_is_the_wheel_that_is_imported(installed, tmp_path):
    where = "import rooflight, pathlib; print(pathlib.Path(rooflight.__file__).resolve())"
    found = run(installed / "python", "-c", where, cwd=tmp_path).stdout
    assert Path(found.strip()).is_relative_to(installed.parent.resolve())


def test_the_installed_command_works(installed, tmp_path):
    command = installed / "rooflight"
    assert run(command, "--version", cwd=tmp_path).stdout == f"rooflight, version {VERSION}\n"
    models = json.loads(run(command, "list", "models", "--json", cwd=tmp_path).stdout)
    assert [model["name"] for model in models] == list(NAMES)
    told = run(command, "estimate", "mnist-cnn", "--batch", "64", cwd=tmp_path).stdout
    # 64 samples of 11,992,448 multiply-adds each: 767,516,672.
    assert "1,199,882 parameters" in told and "768 M" in told
    assert f"rooflight {VERSION}" in told
    assert list(tmp_path.iterdir()) == []
