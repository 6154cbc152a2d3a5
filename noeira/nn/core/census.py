"""The fusion census: kernels by kind, values with several readers, and connected pointwise kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noeira.nn.core.diagram import Diagram, Kernel

VIEWS = frozenset(("reshape", "noeira.load"))
"""Ops that run no kernel of their own: views, and reads of memory."""


@dataclass(frozen=True)
class Census:
    """What a forward is made of.

    Args:
        counts: Kernels by kind.
        fan_out: Boxes that several others read, with their number.
        regions: Connected sets of pointwise kernels that can be one kernel, by position in the diagram's list.
    """

    counts: dict[str, int]
    fan_out: dict[int, int]
    regions: tuple[tuple[int, ...], ...]

    @property
    def saved(self) -> int:
        """Kernels fewer if every region were one."""
        return sum(len(region) - 1 for region in self.regions)


def census(diagram: Diagram) -> Census:
    """Count a diagram's kernels."""
    from noeira.nn.core.diagram import CATEGORIES

    counts = Counter(kernel.category for kernel in diagram.kernels if kernel.op.name not in VIEWS)
    counts["input"] = sum(box.category == "input" for box in diagram.boxes)
    readers = Counter(source for box in diagram.boxes for source in set(box.reads))
    return Census(
        {kind: counts[kind] for kind in CATEGORIES if counts[kind]},
        {box: count for box, count in sorted(readers.items()) if count > 1},
        _regions(diagram.kernels),
    )


def _regions(kernels: list[Kernel]) -> tuple[tuple[int, ...], ...]:
    """Connected pointwise kernels that can be one: no path leaves a region and comes back. Views are looked through."""
    sources: list[set[int]] = []
    before: list[set[int]] = []
    for kernel in kernels:
        read = {i for source in kernel.reads for i in (sources[source] if _is_view(kernels[source]) else {source})}
        sources.append(read)
        before.append(read.union(*(before[i] for i in read)))
    home: dict[int, set[int]] = {}
    for k, kernel in enumerate(kernels):
        if kernel.category != "pointwise":
            continue
        region = {k}
        for source in sorted(sources[k] & home.keys()):
            larger = region | home[source]
            outside = {i for member in larger for i in sources[member]} - larger
            if not any(larger & before[i] for i in outside):
                region = larger
        for member in region:
            home[member] = region
    return tuple(sorted({tuple(sorted(region)) for region in home.values() if len(region) > 1}))


def _is_view(kernel: Kernel) -> bool:
    return kernel.op.name in VIEWS


def report(diagram: Diagram) -> str:
    """The census in words."""
    found = census(diagram)
    total = sum(count for kind, count in found.counts.items() if kind != "input")
    lines = [
        f"fusion census of {diagram.title}: {total} kernels",
        "  " + ", ".join(f"{kind} {count}" for kind, count in found.counts.items()),
    ]
    for index, count in found.fan_out.items():
        box = diagram.boxes[index]
        lines.append(f"  fan-out: {box.path or box.label} is read by {count}")
    for region in found.regions:
        kernels = [diagram.kernels[i] for i in region]
        names = ", ".join(
            f"{kernel.op.name.removeprefix('noeira.')} ({diagram.boxes[kernel.box].path or 'itself'})"
            for kernel in kernels
        )
        lines.append(f"  pointwise region of {len(region)}: {names}")
    lines.append(f"  fused, these would be {found.saved} kernels fewer")
    return "\n".join(lines)
