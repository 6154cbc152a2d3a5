"""Every kernel: nothing outside its operands is touched, and neither a rerun nor the number of parts changes a bit.

The kernels are compiled once more with the division of work under the test's control, each into as many parts as the
environment says, however small the work; and with scratch memory between guard pages (`fences.mojo`). Results that MAX
allocates have no guard pages; memory that kernels write into has.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mojo.run import subprocess_run_mojo

from tests.mojo_kernels.calls import KERNELS, plans, registered
from tests.mojo_kernels.guarded import RUNNING

PARTS = "NOEIRA_TEST_PARTS"
DIVIDED = "work divided into"
"""What the kernels say, with the number of parts, whenever they divide their work."""
ROOT = KERNELS.parent

PATCHES = {
    "threads.mojo": (
        ("from std.math import", "from std.os import getenv\nfrom std.sys import stderr\nfrom std.math import"),
        (
            "return max(1, min(parallelism_level(), flops // FLOPS_PER_PART))",
            f"""try:
        return max(1, min(Int(getenv("{PARTS}", "1")), flops))
    except:
        return 1""",
        ),
        ("        return\n    var tasks", f'        return\n    print("{DIVIDED}", count, file=stderr)\n    var tasks'),
    ),
    "memory.mojo": (
        (
            "from std.memory.alloc import unsafe_alloc",
            "from .fences import fenced, unfence\nfrom std.sys import size_of",
        ),
        (
            "return rebind[Ptr[dtype]](unsafe_alloc[Scalar[dtype]](count, alignment=64))",
            "return Ptr[dtype](unsafe_from_address=fenced(count * size_of[Scalar[dtype]]()))",
        ),
        ("memory.unsafe_free()", "unfence(Int(memory))"),
    ),
}
"""Old and new text by file."""

SERIAL = {"accumulate_totals", "advance", "fold_in", "record_loss", "shuffle", "windows"}
"""Kernels that never divide their work: they touch a few numbers, or each step needs the one before."""


def test_every_registered_kernel_is_called() -> None:
    assert registered() - {plan.calls[0].kernel for plan in plans()} == set()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels, divided into as many parts as the environment says."""
    folder = tmp_path_factory.mktemp("kernels") / "mojo_kernels"
    shutil.copytree(KERNELS, folder)
    shutil.copy(Path(__file__).parent / "fences.mojo", folder)
    for name, patches in PATCHES.items():
        text = (folder / name).read_text(encoding="utf-8")
        for old, new in patches:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")
    for path in folder.glob("*.mojo"):
        assert path.name == "memory.mojo" or "unsafe_alloc" not in path.read_text(encoding="utf-8"), path.name
    return folder


def _run(
    sources: Path, parts: int, placement: str, *, cores: int | None = None
) -> tuple[dict[str, str], dict[str, set[int]]]:
    """Digests of all calls, and the numbers of parts that each kernel divided its work into.

    Raises:
        AssertionError: The process died; the message names the call.
    """
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.mojo_kernels.guarded", str(sources), placement]
    environment = {**os.environ, PARTS: str(parts), "PYTHONPATH": str(ROOT)}
    allowed = set(sorted(os.sched_getaffinity(0))[:cores]) if cores and hasattr(os, "sched_setaffinity") else None
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=None if allowed is None else lambda: os.sched_setaffinity(0, allowed),
    )
    lines = done.stdout.strip().splitlines() or [""]
    assert done.returncode == 0, f"ended with code {done.returncode} while {done.stderr[-3000:]}"
    told: dict[str, set[int]] = {}
    kernel = ""
    for line in done.stderr.splitlines():
        if line.startswith(RUNNING):
            kernel = line.removeprefix(RUNNING).split()[0]
            told.setdefault(kernel, set())
        elif line.startswith(DIVIDED):
            told[kernel].add(int(line.removeprefix(DIVIDED)))
    return json.loads(lines[-1]), told


@pytest.mark.compiled
def test_kernels_stay_within_their_operands_and_no_division_of_work_changes_a_bit(sources: Path) -> None:
    """1 part; 2 and 5 on all cores; 3 on one core: with guard pages behind and in front of every operand."""
    one, undivided = _run(sources, 1, "end")
    assert undivided.keys() == registered()
    assert len(one) == sum(len(plan.calls) for plan in plans())
    for parts, placement, cores in ((2, "start", None), (5, "end", None), (3, "end", 1)):
        other, told = _run(sources, parts, placement, cores=cores)
        assert {kernel for kernel, numbers in told.items() if not numbers} == {f"noeira.{name}" for name in SERIAL}
        assert {call: digest for call, digest in other.items() if one[call] != digest} == {}, f"in {parts} parts"


@pytest.mark.parametrize(("placement", "step"), [("end", 8), ("start", -1)])
def test_a_byte_outside_a_fence_cannot_be_read(placement: str, step: int) -> None:
    code = (
        "import ctypes; from tests.mojo_kernels.guarded import Fence; fence = Fence(8); "
        f"memory = fence.bytes('{placement}'); memory[:] = 7; start = memory.ctypes.data; "
        f"print(ctypes.string_at(start, 8), flush=True); ctypes.string_at(start + {step}, 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGSEGV and done.stdout.strip() == str(bytes([7] * 8))


@pytest.mark.compiled
def test_a_byte_behind_scratch_memory_cannot_be_read(sources: Path, tmp_path: Path) -> None:
    program = tmp_path / "read.mojo"
    program.write_text("""from mojo_kernels.memory import allocate, at, release

def main():
    var memory = allocate[DType.uint8](24)
    print("inside", at(memory, 23))
    release(memory)
    print("outside", at(allocate[DType.uint8](24), 24))
""")
    done = subprocess_run_mojo(["run", "-I", str(sources.parent), str(program)], capture_output=True, text=True)
    assert done.returncode != 0 and done.stdout.split() == ["inside", "255"], done.stderr
