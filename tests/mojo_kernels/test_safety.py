"""Every kernel: nothing outside its operands is touched, and neither a rerun nor the number of parts changes a bit.

The kernels are compiled once more with the division of work under the test's control: each into as many parts as the
environment says, however small the work. Results that MAX allocates have no guard pages, memory that kernels write into
has.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mojo_kernels.calls import KERNELS, plans, registered

PARTS = "NOEIRA_TEST_PARTS"
DIVISION = "return max(1, min(parallelism_level(), flops // FLOPS_PER_PART))"
DIVIDED = "work divided into"
"""What the kernels say, with the number of parts, whenever they divide their work."""
ROOT = KERNELS.parent


def test_every_registered_kernel_is_called() -> None:
    assert registered() - {plan.calls[0].kernel for plan in plans()} == set()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels, divided into as many parts as the environment says."""
    folder = tmp_path_factory.mktemp("kernels") / "mojo_kernels"
    shutil.copytree(KERNELS, folder)
    path = folder / "threads.mojo"
    text = path.read_text(encoding="utf-8")
    forced = f"""try:
        return max(1, min(Int(getenv("{PARTS}", "1")), flops))
    except:
        return 1"""
    told = f"        return\n    print({DIVIDED!r}, count, file=stderr)\n    var tasks".replace("'", '"')
    for old, new in (
        (DIVISION, forced),
        ("from std.math import", "from std.os import getenv\nfrom std.sys import stderr\nfrom std.math import"),
        ("        return\n    var tasks", told),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return folder


def _run(sources: Path, parts: int, placement: str, *, cores: int | None = None) -> tuple[dict[str, str], set[int]]:
    """Digests of all calls, and the numbers of parts that kernels divided their work into.

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
    assert done.returncode == 0, f"ended with code {done.returncode} while {lines[-1]}\n{done.stderr[-2000:]}"
    told = {int(line.removeprefix(DIVIDED)) for line in done.stderr.splitlines() if line.startswith(DIVIDED)}
    return json.loads(lines[-1]), told


@pytest.mark.compiled
def test_kernels_stay_within_their_operands_and_no_division_of_work_changes_a_bit(sources: Path) -> None:
    """1 part; 2 and 5 on all cores; 3 on one core: with guard pages behind and in front of every operand."""
    one, divided = _run(sources, 1, "end")
    assert len(one) == sum(len(plan.calls) for plan in plans())
    for parts, placement, cores in ((2, "start", None), (5, "end", None), (3, "end", 1)):
        other, told = _run(sources, parts, placement, cores=cores)
        assert parts in told - divided
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
