"""What compiles for GPUs on this machine, which needs none: `python -m bench.gpu.check`.

For NVIDIA a whole program is compiled for a virtual device, for Apple a kernel is compiled to AIR. First a trivial
kernel of the harness's own, which shows that cross-compilation works here; then every kernel claimed to have GPU code
(`bench/gpu/claims.py`). A kernel without a claim is listed as having none. The exit code is 0 only if nothing that is
claimed fails, and nothing is promised to users (`KERNEL_TARGETS`) that is not claimed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NVIDIA_ARCH, APPLE_ARCH = "sm_90a", "apple-m4"
KERNELS = Path(__file__).parent / "kernels"
PROBE = "the harness's own probe"

COMPILES, NONE, FAILED = "compiles", "no GPU kernel yet", "FAILED"


@dataclass(frozen=True)
class Item:
    """One line of the report."""

    target: str
    name: str
    verdict: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.target:<16} {self.name:<32} {self.verdict}{f': {self.detail}' if self.detail else ''}"


Compiler = Callable[[str | None], list[str]]
"""Compiles the probe (None) or a claimed op; returns the GPU kernels it made, or raises CompileError."""


class CompileError(RuntimeError):
    """The compiler refused, or made no GPU code."""


def compile_nvidia(name: str | None) -> list[str]:
    """A whole program for a virtual NVIDIA device."""
    command = [sys.executable, "-m", "bench.gpu.compile_virtual", NVIDIA_ARCH, *([name] if name else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    kernels = done.stdout.split()
    if done.returncode:
        raise CompileError(_why(done.stderr) if done.stderr.strip() else "the program holds no GPU kernel")
    return kernels


def compile_apple(name: str | None) -> list[str]:
    """A kernel to AIR, the GPU code of Apple's Metal."""
    from mojo.run import subprocess_run_mojo

    from bench.gpu.claims import APPLE

    source = KERNELS / "probe_main.mojo" if name is None else APPLE[name]
    with tempfile.TemporaryDirectory(prefix="noeira-air-") as folder:
        host = Path(folder) / "host.air"
        command = ["build", "--emit", "air", "--target-accelerator", APPLE_ARCH, str(source), "-o", str(host)]
        done = subprocess_run_mojo(command, capture_output=True, text=True)
        kernels = sorted(path.stem for path in Path(folder).glob("*.air") if path != host)
    if done.returncode:
        raise CompileError(_why(done.stderr))
    if not kernels:
        raise CompileError("the program holds no GPU kernel")
    return kernels


def _why(errors: str) -> str:
    """The first line of a compiler's output that says what is wrong."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return next((line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)), lines[-1] if lines else "")


def check(
    target: str, compiler: Compiler, claimed: Sequence[str], registered: Sequence[str], *, promised: bool
) -> Iterator[Item]:
    """The probe, then every registered op."""
    yield _attempt(target, PROBE, compiler, None)
    for name in registered:
        if name in claimed:
            yield _attempt(target, name, compiler, name)
        elif promised:
            yield Item(target, name, FAILED, "KERNEL_TARGETS promises this device, but no GPU kernel is claimed")
        else:
            yield Item(target, name, NONE)
    for name in claimed:
        if name not in registered:
            yield Item(target, name, FAILED, "claimed, but no kernel is registered under this name")


def _attempt(target: str, name: str, compiler: Compiler, claim: str | None) -> Item:
    try:
        kernels = compiler(claim)
    except CompileError as error:
        return Item(target, name, FAILED, str(error))
    return Item(target, name, COMPILES, f"{len(kernels)} GPU kernel{'s' if len(kernels) != 1 else ''}")


def summary(items: Sequence[Item]) -> str:
    """One line a target."""
    targets: dict[str, list[Item]] = {}
    for item in items:
        targets.setdefault(item.target, []).append(item)
    rows = []
    for target, members in targets.items():
        ops = [item for item in members if item.name != PROBE]
        counts = {verdict: sum(item.verdict == verdict for item in ops) for verdict in (COMPILES, NONE, FAILED)}
        rows.append(f"{target}: of {len(ops)} ops " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", choices=("nvidia", "apple"), nargs="+", default=["nvidia", "apple"])
    options = parser.parse_args(arguments)
    from bench.gpu import claims
    from noeira.runtime.devices import KERNEL_TARGETS

    print(f"devices noeira's kernels are for: {', '.join(KERNEL_TARGETS)}")
    plans = {
        "nvidia": (f"nvidia {NVIDIA_ARCH}", compile_nvidia, [*claims.NVIDIA], "cuda" in KERNEL_TARGETS),
        "apple": (f"apple {APPLE_ARCH[6:]}", compile_apple, [*claims.APPLE], "metal" in KERNEL_TARGETS),
    }
    items: list[Item] = []
    for name in options.target:
        target, compiler, claimed, promised = plans[name]
        for item in check(target, compiler, claimed, claims.registered(), promised=promised):
            print(item, flush=True)
            items.append(item)
    print(summary(items))
    return 1 if any(item.verdict == FAILED for item in items) else 0


if __name__ == "__main__":
    sys.exit(main())
