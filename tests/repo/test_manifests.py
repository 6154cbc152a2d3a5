"""pyproject.toml, pixi.toml, the Makefile and the changelog say the same, and what they name exists."""

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT.parent / "shared" / "data" / "pixi-manifest-schema.json"
PIXI = tomllib.loads((ROOT / "pixi.toml").read_text(encoding="utf-8"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TASKS = (
    "mnist", "mnist-conv", "fashion-conv", "fashion-resnet", "cifar10-conv", "cifar10-resnet",
    "cifar10-vit", "fashion-vit", "gpt", "lstm",
    "test", "bench", "lint", "gpu-check",
)  # fmt: skip
# Split in two, or this file would break its own rule.
REGISTRY_HOSTS = [
    f"{name}.{domain}"
    for domain, names in {
        "org": ["pypi", "pythonhosted", "anaconda", "npmjs", "pytorch", "debian"],
        "dev": ["prefix"],
        "io": ["crates"],
        "com": ["conda.modular", "whl.modular", "yarnpkg"],
    }.items()
    for name in names
]


def pixi_commands():
    """Task name -> command."""
    return {name: task if isinstance(task, str) else task["cmd"] for name, task in PIXI["tasks"].items()}


def make_commands():
    """Target name -> the command its recipe runs."""
    return dict(re.findall(r"^CMD_([\w-]+) := (.+)$", MAKEFILE, flags=re.MULTILINE))


def problems_with(command, root):
    """Why a command cannot run: a file, module or tool that does not exist."""
    found = []
    for part in command.split("&&"):
        program, *arguments = part.split()
        if program != "python":
            # `mblack` is what `mojo format` runs; it comes with the package `mojo`.
            package = {"mblack": "mojo"}.get(program, program)
            if not any(re.match(rf"{package}\b", requirement) for requirement in EXTRAS["lint"]):
                found.append(f"{program} is not in the extra `lint`")
        elif arguments[0] != "-m":
            if not (root / arguments[0]).is_file():
                found.append(f"no file {arguments[0]}")
        else:
            path = root.joinpath(*arguments[1].split("."))
            local = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
            if not local and ("." in arguments[1] or importlib.util.find_spec(arguments[1]) is None):
                found.append(f"no module {arguments[1]}")
    return found


def pins(requirements):
    """Package -> exact version, for those that have one."""
    found = (re.fullmatch(r"([\w-]+)(?:\[.*\])?==([\w.]+)", requirement) for requirement in requirements)
    return {match[1]: match[2] for match in found if match}


def pixi_pins(*tables):
    return {
        name: spec.removeprefix("==")
        for table in tables
        for name, spec in table["pypi-dependencies"].items()
        if isinstance(spec, str) and spec.startswith("==")
    }


def text_files():
    """The repository's own text files: those git knows or would add, or all where this is no checkout."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0 and (ROOT / ".git").exists():
        paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        hidden = {".venv", ".git", ".pixi", "build", "dist", "__pycache__"}
        paths = [path for path in ROOT.rglob("*") if not hidden & set(path.relative_to(ROOT).parts)]
    for path in paths:
        if path.is_file() and b"\0" not in (data := path.read_bytes()):
            yield path, data.decode("utf-8", errors="replace")


def registry_mentions(text):
    return [host for host in REGISTRY_HOSTS if re.search(rf"\b{re.escape(host)}\b", text, re.IGNORECASE)]


def test_pixi_manifest_is_valid():
    if not SCHEMA.exists():
        pytest.skip(f"no schema at {SCHEMA}")
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert [error.message for error in validator.iter_errors(PIXI)] == []
    assert [*validator.iter_errors(PIXI | {"nonsense": 1})], "the schema accepts anything"


def test_pixi_environments_and_platforms():
    assert {"default", "nvidia", "apple"} <= PIXI["environments"].keys()
    assert set(PIXI["workspace"]["platforms"]) == {"linux-64", "linux-aarch64", "osx-arm64"}
    assert PIXI["feature"]["apple"]["platforms"] == ["osx-arm64"]
    assert "cuda" in PIXI["feature"]["nvidia"]["system-requirements"]
    assert all(re.fullmatch(r"[\w-]+", channel) for channel in PIXI["workspace"]["channels"])
    named = {feature for features in PIXI["environments"].values() for feature in features}
    assert named == PIXI["feature"].keys()


def test_make_and_pixi_run_the_same_commands():
    assert make_commands() == pixi_commands()
    assert set(TASKS) == make_commands().keys()


@pytest.mark.parametrize("task", TASKS)
def test_make_target_runs_its_command(task):
    shown = subprocess.run(
        ["make", "--no-print-directory", "-n", task], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert shown.rstrip().splitlines()[-1].endswith(f"&& {make_commands()[task]}"), shown


@pytest.mark.parametrize("task", TASKS)
def test_command_exists(task):
    assert problems_with(pixi_commands()[task], ROOT) == []


@pytest.mark.parametrize(
    "command",
    ["python missing.py", "python -m no_such_module", "python -m bench.no_such", "ruff . && flake8"],
)
def test_missing_command_is_noticed(command):
    assert len(problems_with(command, ROOT)) == 1


def test_pins_agree():
    ours = pins(PYPROJECT["project"]["dependencies"])
    theirs = pixi_pins(PIXI)
    assert {"max", "mojo-compiler"} <= ours.keys()
    assert theirs == ours
    assert pixi_pins(PIXI["feature"]["dev"])["torch"] == pins(EXTRAS["test"])["torch"]
    assert pins(EXTRAS["lint"])["mojo"] == ours["mojo-compiler"]
    assert PIXI["dependencies"]["python"] == PYPROJECT["project"]["requires-python"]
    assert PIXI["workspace"]["version"] == PYPROJECT["project"]["version"]


def test_torch_is_never_open():
    for extra, requirements in EXTRAS.items():
        for requirement in requirements:
            assert not requirement.startswith("torch") or requirement == "torch==2.13.0", (extra, requirement)


@pytest.mark.parametrize("package", ["max", "mojo-compiler"])
def test_pinned_version_is_installed(package):
    assert importlib.metadata.version(package) == pins(PYPROJECT["project"]["dependencies"])[package]


def test_python_is_supported():
    low, high = re.findall(r"3\.(\d+)", PYPROJECT["project"]["requires-python"])
    assert int(low) <= sys.version_info.minor < int(high)
    assert f"(3, {low}) <= v < (3, {high})" in MAKEFILE


def test_no_file_names_a_package_registry():
    seen = {str(path.relative_to(ROOT)): registry_mentions(text) for path, text in text_files()}
    assert "pyproject.toml" in seen
    assert {name: hosts for name, hosts in seen.items() if hosts} == {}
    assert all(registry_mentions(f"https://files.{host.upper()}/x") for host in REGISTRY_HOSTS)


def test_changelog_has_the_version_or_unreleased():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[([^\]]+)\]", text, flags=re.MULTILINE)
    assert {"Unreleased", PYPROJECT["project"]["version"]} & set(headings)
