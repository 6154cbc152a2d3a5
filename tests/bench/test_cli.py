"""The command line, the listing, the environment, the systems."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench import environment, systems
from bench.case import Case, Unsupported, discover

ROOT = Path(__file__).resolve().parents[2]
CASES = discover()


def test_listing_names_cases_and_systems(capsys):
    assert cli.main(["--list"]) == 0
    text = capsys.readouterr().out
    for name in ("mlp", "startup", "adamw-10M", "gemm-square-2048-forward", "torch-compile", "jax"):
        assert name in text


def test_list_imports_no_other_system():
    code = (
        "import sys; from bench.__main__ import main; main(['--list']); print(sorted({'torch','jax'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_sweep_is_large_enough():
    names = [case.name for case in CASES if case.family == "gemm"]
    assert len(names) >= 3 * 16
    assert {name.rsplit("-", 1)[-1] for name in names} == {"forward", "grad"}
    assert all(case.runs >= 25 for case in CASES if case.family not in ("startup", "compile"))
    assert all("noeira" in case.builders and set(case.builders) <= systems.SYSTEMS.keys() for case in CASES)


def test_select():
    names = [case.name for case in cli.select(CASES, ["gemm-mlp-1-*", "mlp"], quick=False)]
    assert names == ["gemm-mlp-1-forward", "gemm-mlp-1-input-grad", "gemm-mlp-1-weight-grad", "mlp"]
    assert cli.select(CASES, [], quick=False) == CASES
    quick = cli.select(CASES, [], quick=True)
    assert {case.family for case in quick} >= {"gemm", "training", "optimizer", "cross-entropy", "startup"}
    assert len(quick) < len(CASES)
    with pytest.raises(SystemExit, match="no case is called nonsense"):
        cli.select(CASES, ["mlp", "nonsense"], quick=False)


def test_unknown_system():
    with pytest.raises(SystemExit, match="unknown system theano"):
        cli.chosen_systems("theano", 2)


def test_missing_system_is_left_out_and_said(monkeypatch, capsys):
    def prepare(name, threads):
        if name == "jax":
            raise Unsupported("jax is not installed here")
        return "1"

    monkeypatch.setattr(systems, "prepare", prepare)
    present, absent = cli.chosen_systems("jax,numpy", 2)
    assert present == ["noeira", "numpy"]
    assert absent == {"jax": "jax is not installed here"}
    assert "jax: left out" in capsys.readouterr().err
    assert cli.chosen_systems("none", 2)[0] == ["noeira"]


def test_prepare_names_the_package(monkeypatch):
    def gone(threads):
        raise ImportError("no module")

    monkeypatch.setitem(systems.SYSTEMS, "jax", systems.System("jax", "", gone))
    with pytest.raises(Unsupported, match="jax is not installed here"):
        systems.prepare("jax", 2)


def test_two_cases_of_one_name_are_refused(tmp_path, monkeypatch):
    package = tmp_path / "twice"
    package.mkdir()
    (package / "__init__.py").touch()
    source = "from bench.case import Case\ndef cases():\n    return [Case('same', 'f', dict, {})]\n"
    for name in ("one", "two"):
        (package / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="same"):
        discover("twice")


def test_environment_loses_overrides_and_gets_threads():
    dirty = {"OPENBLAS_CORETYPE": "Prescott", "OPENBLAS_L2_SIZE": "1", "HOME": "x", "OMP_NUM_THREADS": "7"}
    cleaned = environment.clean(dirty, 2)
    assert cleaned == {"HOME": "x", "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    assert environment.clean(cleaned, 2) == cleaned


def test_restart_happens_once(monkeypatch):
    started = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    monkeypatch.setattr(os, "environ", {"OPENBLAS_CORETYPE": "Prescott"})
    environment.restart_if_needed(["--quick"])
    ((program, command, wanted),) = started
    assert program == sys.executable and command[1:] == ["-m", "bench", "--quick"]
    assert "OPENBLAS_CORETYPE" not in wanted
    monkeypatch.setattr(os, "environ", wanted)
    environment.restart_if_needed(["--quick"])
    assert len(started) == 1


def test_environment_module_loads_no_numpy():
    code = "import sys, bench.environment; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_run_writes_its_reports_and_fails_where_results_differ(tmp_path, monkeypatch, capsys):
    import numpy as np

    from bench import machine
    from bench.case import Job

    def builder(value):
        return lambda inputs, setup: Job(lambda: None, lambda: {"y": np.array(value)}, measure=lambda: value)

    cases = [Case("good", "f", dict, {"noeira": builder(1.0), "numpy": builder(1.0)}, runs=2)]
    monkeypatch.setattr(systems, "prepare", lambda name, threads: "1")
    monkeypatch.setattr(machine, "measure_peaks", lambda threads: None)
    files = [tmp_path / "r.json", tmp_path / "r.md"]
    options = cli.parse(["--json", str(files[0]), "--results", str(files[1]), "--against", "numpy", "--patience", "0"])
    assert cli.run(options, cases, 2) == 0
    assert all(path.exists() for path in files)
    cases.append(Case("bad", "f", dict, {"noeira": builder(1.0), "numpy": builder(2.0)}, runs=2))
    assert cli.run(options, cases, 2) == 1
    assert "no figures for 1 of 2 cases: bad" in capsys.readouterr().err


def test_arguments():
    assert cli.parse(["--case", "a", "b", "--quick"]).case == ["a", "b"]
    with pytest.raises(SystemExit):
        cli.parse(["--runs", "0"])
