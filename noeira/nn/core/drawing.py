"""Diagrams as text: a table, a Mermaid flow chart, an SVG picture."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from noeira.nn.core.summary import size_text

if TYPE_CHECKING:
    from noeira.nn.core.diagram import Box, Diagram


def _shape(box: Box) -> str:
    return "[" + ", ".join(map(str, box.shape)) + "]"


def text(diagram: Diagram) -> str:
    """A table with a row per box, in the order in which they run."""
    rows = [("#", "path", "module", "reads", "gives", "FLOPs", "read", "written")]
    for box in diagram.boxes:
        rows.append(
            (
                str(box.index),
                box.path or ("" if box.category == "input" else "(itself)"),
                box.label,
                ", ".join(map(str, box.reads)),
                _shape(box),
                f"{box.flops:,}",
                size_text(box.bytes_read),
                size_text(box.bytes_written),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(8)]
    lines = [f"{diagram.title}: {len(diagram.boxes)} boxes, {sum(box.flops for box in diagram.boxes):,} FLOPs"]
    for row in rows:
        cells = [
            cell.rjust(width) if column in (0, 5, 6, 7) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _work(box: Box) -> str:
    return f"{box.flops:,} FLOPs, {size_text(box.bytes_read + box.bytes_written)}"


def mermaid(diagram: Diagram) -> str:
    """`graph TD`: inputs as stadiums, containers as subgraphs, outputs with a thick border."""

    def quoted(*lines: str) -> str:
        return '"' + "<br/>".join(line.replace("&", "&amp;").replace('"', "&quot;") for line in lines if line) + '"'

    def around(box: Box) -> tuple[str, ...]:
        names = box.path.split(".") if box.category != "input" else []
        prefixes = [".".join(names[:i]) for i in range(1, len(names) + 1)]
        return tuple(prefix for prefix in prefixes if prefix in diagram.containers)

    lines, opened, count = ["graph TD"], (), 0
    for box in diagram.boxes:
        wanted = around(box)
        shared = 0
        while shared < min(len(opened), len(wanted)) and opened[shared] == wanted[shared]:
            shared += 1
        for depth in range(len(opened), shared, -1):
            lines.append("  " * depth + "end")
        for depth in range(shared, len(wanted)):
            name = quoted(f"{wanted[depth]}: {diagram.containers[wanted[depth]]}")
            lines.append("  " * (depth + 1) + f"subgraph c{count}[{name}]")
            count += 1
        opened = wanted
        left, right = ("([", "])") if box.category == "input" else ("[", "]")
        caption = quoted(box.path or box.label, box.label if box.path else "", _shape(box))
        if box.category != "input":
            caption = quoted(box.path, box.label, _shape(box), _work(box))
        lines.append("  " * (len(opened) + 1) + f"n{box.index}{left}{caption}{right}")
    lines += ["  " * depth + "end" for depth in range(len(opened), 0, -1)]
    lines += [f"  n{source} --> n{box.index}" for box in diagram.boxes for source in box.reads]
    lines += [f"  style n{index} stroke-width:3px" for index in dict.fromkeys(diagram.outputs)]
    return "\n".join(lines)


COLOURS = {
    "matmul": "#cfe2ff",
    "pointwise": "#d9f2d9",
    "memory": "#f0f0f0",
    "rng": "#f6e3ff",
    "loss": "#ffd9d9",
    "input": "#ffffff",
    "other": "#fff3cd",
}
"""Fill of a box by its kind."""

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 220, 64, 28, 40, 32
"""Of boxes, and between them, in pixels."""

BULGE = 0.8 * WIDTH
"""How far to the side arrows are pulled that pass other rows."""


def svg(diagram: Diagram) -> str:
    """Boxes in rows by their longest path from an input, arrows downwards."""
    level: list[int] = []
    for box in diagram.boxes:
        level.append(max((level[source] + 1 for source in box.reads), default=0))
    rows: dict[int, list[int]] = {}
    for box in diagram.boxes:
        rows.setdefault(level[box.index], []).append(box.index)
    widest = max((len(row) for row in rows.values()), default=1)
    width = 2 * MARGIN + widest * (WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + max(1, len(rows)) * (HEIGHT + GAP_Y) - GAP_Y
    place: dict[int, tuple[float, float]] = {}
    for depth, row in rows.items():
        left = (width - len(row) * (WIDTH + GAP_X) + GAP_X) / 2
        for i, index in enumerate(row):
            place[index] = left + i * (WIDTH + GAP_X), MARGIN + depth * (HEIGHT + GAP_Y)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f"<title>{escape(diagram.title)}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    for box in diagram.boxes:
        for source in box.reads:
            (x0, y0), (x1, y1) = place[source], place[box.index]
            x0, y0, x1 = x0 + WIDTH / 2, y0 + HEIGHT, x1 + WIDTH / 2
            middle, passing = (y0 + y1) / 2, level[box.index] - level[source] > 1
            side = max(x0, x1) + BULGE  # around the boxes in between
            bend = (side, middle, side, middle) if passing else (x0, middle, x1, middle)
            controls = " ".join(f"{number:g}" for number in bend)
            lines.append(
                f'<path d="M{x0:g} {y0:g}C{controls} {x1:g} {y1:g}" fill="none" stroke="#555" marker-end="url(#tip)"/>'
            )
    for box in diagram.boxes:
        x, y = place[box.index]
        border = 3 if box.index in diagram.outputs else 1
        radius = HEIGHT // 2 if box.category == "input" else 6
        lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="{radius}" '
            f'fill="{COLOURS[box.category]}" stroke="#333" stroke-width="{border}"/>'
        )
        captions = (box.path or box.label, box.label if box.path else "", _shape(box), _work(box) if box.flops else "")
        for i, caption in enumerate(caption for caption in captions if caption):
            at = f'x="{x + WIDTH / 2:g}" y="{y + 16 + 14 * i:g}" text-anchor="middle"'
            lines.append(f"<text {at}>{escape(_short(caption))}</text>")
    return "\n".join([*lines, "</svg>"])


def _short(caption: str, most: int = 34) -> str:
    return caption if len(caption) <= most else caption[: most - 1] + "…"
