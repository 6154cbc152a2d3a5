"""The wheel and the sdist carry the Mojo sources and what else they must, and the wheel nothing more."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
pytest.importorskip("build")

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
KERNELS = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mojo_kernels").rglob("*.mojo")}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The names in the wheel and in the sdist, and the wheel's metadata; it is built from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    prefix = f"{PROJECT['name']}-{PROJECT['version']}"
    with tarfile.open(sdist) as archive:
        sources = {member.name.removeprefix(f"{prefix}/") for member in archive if member.isfile()}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = Parser().parsestr(archive.read(f"{prefix}.dist-info/METADATA").decode())
    yield names, sources, metadata
    shutil.rmtree(out)


def test_both_carry_every_kernel(built):
    names, sources, _ = built
    assert any(Path(kernel).parent == Path("mojo_kernels") for kernel in KERNELS)
    assert {f"noeira/{kernel}" for kernel in KERNELS} <= names
    assert KERNELS <= sources


def test_both_carry_the_typing_marker_and_every_module(built):
    names, sources, _ = built
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "noeira").rglob("*.py")}
    assert modules | {"noeira/py.typed"} <= names & sources


def test_wheel_holds_the_package_only(built):
    names, _, _ = built
    assert {name.split("/")[0] for name in names} == {"noeira", f"noeira-{PROJECT['version']}.dist-info"}
    assert not [name for name in names if name.endswith((".mojoc", ".pyc"))]


def test_sdist_carries_tests_and_examples(built):
    _, sources, _ = built
    assert "tests/repo/test_wheel.py" in sources
    examples = {path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*.py")}
    assert examples and examples <= sources
    assert {"pyproject.toml", "Makefile", "pixi.toml", "README.md", "CHANGELOG.md", "LICENSE"} <= sources


def test_metadata(built):
    names, _, metadata = built
    assert (metadata["Name"], metadata["Version"]) == (PROJECT["name"], PROJECT["version"])
    assert metadata["License-Expression"] == "MIT"
    assert f"noeira-{PROJECT['version']}.dist-info/licenses/LICENSE" in names
    assert {"max==26.7.0", "mojo-compiler==1.2.0"} <= set(metadata.get_all("Requires-Dist"))
    assert set(metadata.get_all("Provides-Extra")) == PROJECT["optional-dependencies"].keys()
