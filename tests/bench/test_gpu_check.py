"""The GPU check's verdicts, with made-up compilers, and its parts that need no compiler."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from bench.gpu import check as gpu
from bench.gpu import claims
from bench.gpu.compile_virtual import gpu_kernels

ROOT = Path(__file__).resolve().parents[2]


def compiler(*good):
    def run(name):
        if name in good:
            return ["a_kernel"]
        raise gpu.CompileError("error: nope")

    return run


def verdicts(claimed, good, *, promised=False):
    items = gpu.check("t", compiler(*good), claimed, ["op.a", "op.b"], promised=promised)
    return {item.name: item.verdict for item in items}


def test_unclaimed_ops_have_no_kernel_yet():
    assert verdicts([], [None]) == {gpu.PROBE: gpu.COMPILES, "op.a": gpu.NONE, "op.b": gpu.NONE}


def test_a_claim_that_compiles_and_one_that_does_not():
    assert verdicts(["op.a", "op.b"], [None, "op.a"]) == {
        gpu.PROBE: gpu.COMPILES,
        "op.a": gpu.COMPILES,
        "op.b": gpu.FAILED,
    }


def test_a_claim_without_an_op_and_a_promise_without_a_claim_fail():
    assert verdicts(["op.gone"], [None, "op.gone"])["op.gone"] == gpu.FAILED
    assert verdicts(["op.a"], [None, "op.a"], promised=True)["op.b"] == gpu.FAILED


def test_a_broken_toolchain_fails():
    assert verdicts([], [])[gpu.PROBE] == gpu.FAILED


@pytest.mark.parametrize(("good", "code"), [([None], 0), ([], 1)])
def test_exit_code(monkeypatch, capsys, good, code):
    monkeypatch.setattr(gpu, "compile_nvidia", compiler(*good))
    monkeypatch.setattr(gpu, "compile_apple", compiler(*good))
    monkeypatch.setattr(claims, "NVIDIA", {})
    monkeypatch.setattr(claims, "APPLE", {})
    monkeypatch.setattr("noeira.runtime.devices.KERNEL_TARGETS", ("cpu",))
    assert gpu.main([]) == code
    text = capsys.readouterr().out
    assert "nvidia sm_90a" in text and "apple m4" in text and gpu.NONE in text


def test_claims_are_of_registered_ops():
    names = claims.registered()
    assert "noeira.linear" in names and len(names) >= 15
    assert {*claims.NVIDIA, *claims.APPLE} <= {*names}


def test_kernels_are_found_in_a_program():
    assert gpu_kernels(b"\x00.nv.info.my_kernel_1\x00.text.x\x00.nv.info\x00.nv.info.other\x00") == [
        "my_kernel_1",
        "other",
    ]
    assert gpu_kernels(b"only host code") == []


def test_what_was_wrong_is_the_first_error_line():
    assert gpu._why("note: x\nfile.mojo:3: error: bad\nerror: again\n") == "file.mojo:3: error: bad"
    assert gpu._why("gave up\n") == "gave up"


def test_run_script_is_executable_and_refuses_a_machine_without_a_card(tmp_path):
    script = ROOT / "bench" / "gpu" / "run.sh"
    assert os.access(script, os.X_OK)
    tools = {name: tmp_path / name for name in ("bash", "dirname")}
    for name, link in tools.items():
        link.symlink_to(f"/usr/bin/{name}" if Path(f"/usr/bin/{name}").exists() else f"/bin/{name}")
    done = subprocess.run(
        ["bash", str(script)], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert re.search("no NVIDIA GPU here", done.stderr)
