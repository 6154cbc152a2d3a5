"""What a stack of transformer blocks costs: `Repeat` against the same blocks unrolled, `Checkpointed` against neither.

python -m bench.stacks

Prints the time of a training step of a GPT of 6 blocks as `Repeat` and as `Sequential` with their ratio, and the
activation memory of a GPT of 12 blocks with and without `Checkpointed`: how far the process's peak rises above what it
held before the first step, in a process of its own.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench.environment import cores

VOCAB = 65
MIB = 1 << 20


def _block(width: int, heads: int) -> object:
    from noeira.nn import TransformerBlock

    return TransformerBlock(width, heads, is_causal=True)


def _checkpointed(width: int, heads: int) -> object:
    from noeira.nn import Checkpointed

    return Checkpointed(_block(width, heads))  # type: ignore[arg-type]


def _net(layers: int, width: int, heads: int, sequence: int, make: Callable[[int, int], object], unrolled: bool):
    from noeira.nn import Embedding, LayerNorm, Linear, PositionEmbedding, Repeat, Sequential

    blocks = functools.partial(make, width, heads)
    stack = Sequential(*(blocks() for _ in range(layers))) if unrolled else Repeat(layers, blocks)  # type: ignore[arg-type]
    return Sequential(
        Embedding(VOCAB, width), PositionEmbedding(sequence, width), stack, LayerNorm(width), Linear(width, VOCAB)
    )


def _step(layers: int, width: int, heads: int, sequence: int, batch: int, make: Callable, unrolled: bool):
    from bench.training import NoeiraStep, Task, data
    from noeira.runtime.devices import Device

    net = functools.partial(_net, layers, width, heads, sequence, make, unrolled)
    task = Task(net, lambda: None, (sequence,), VOCAB, batch, tokens=True)
    return NoeiraStep(task, data(task), Device("cpu"))


def repeat_against_unrolled() -> None:
    """Time both by turns."""
    from bench.timing import Plan, Ratio, Summary, Timed, measure

    steps = {
        name: _step(6, 128, 4, 64, 16, _block, unrolled) for name, unrolled in (("repeat", False), ("unrolled", True))
    }
    measured = measure({name: Timed(step.run) for name, step in steps.items()}, Plan(runs=50))
    for name, samples in measured.samples.items():
        summary = Summary.of(samples)
        print(f"{name:<9} {1e3 * summary.median:7.2f} ms  [{1e3 * summary.p10:.2f} .. {1e3 * summary.p90:.2f}]")
    ratio = Ratio.of(measured.samples["repeat"], measured.samples["unrolled"])
    print(f"repeat/unrolled = {ratio.value:.3f} ({ratio.low:.3f} .. {ratio.high:.3f})")


def _status(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status: this measurement needs Linux")


def activation_memory(checkpointed: bool) -> int:
    """Bytes by which one training step raises this process's peak."""
    step = _step(12, 256, 4, 256, 8, _checkpointed if checkpointed else _block, False)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again at what is held now
    before = _status("VmRSS")
    step.run()
    return _status("VmHWM") - before


def checkpointed_against_kept() -> None:
    """Measure both, each in its process."""
    found = {}
    for name in ("kept", "checkpointed"):
        command = [sys.executable, "-m", "bench.stacks", name]
        # The first start may compile, and a compiler's memory must not count.
        runs = [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True) for _ in range(2)]
        found[name] = int(runs[-1].stdout.split()[-1])
        print(f"{name:<12} {found[name] / MIB:7.1f} MiB of activations")
    print(f"kept/checkpointed = {found['kept'] / found['checkpointed']:.2f}")


def main() -> None:
    """Both measurements; with an argument one half of the second."""
    if len(sys.argv) > 1:
        print(activation_memory(sys.argv[1] == "checkpointed"))
        return
    print(f"{cores()} threads")
    repeat_against_unrolled()
    checkpointed_against_kept()


if __name__ == "__main__":
    main()
