"""Diagrams: which box reads which, how much work it is, and how it is written down."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest

from noeira import nn
from noeira.nn import diagram
from noeira.nn.core.census import census
from noeira.nn.core.diagram import CATEGORIES, category
from noeira.nn.core.summary import trace
from tests.catalogue_combinators import Borrower, Tour, diamond

NET = nn.Sequential(nn.Linear(4, 8), nn.Residual(nn.Sequential(nn.Linear(8, 8), nn.ReLU())), nn.Linear(8, 2))
NETS = {
    "chain": (NET, ((16, 4),)),
    "graph": (diamond(), ((3, 5), (3, 3))),
    "external nodes": (Borrower(), ((3, 5), (3, 5))),
    "composed": (Tour(), ((3, 5),)),
    "GPT": (nn.GPT(11, 6, 2, 2, 8), (np.zeros((2, 6), np.int32),)),
    "images": (nn.Sequential(nn.Conv2D(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)), ((2, 3, 8, 8),)),
    "a free batch": (NET, (("b", 4),)),
}
ALL = pytest.mark.parametrize("name", NETS)


def test_boxes_arrows_and_numbers() -> None:
    found = diagram(NET, (16, 4))
    assert [(box.path, box.label, box.reads) for box in found.boxes] == [
        ("input 0", "input", []),
        ("0", "Linear(4, 8)", [0]),
        ("1.module.0", "Linear(8, 8)", [1]),
        ("1.module.1", "ReLU()", [2]),
        ("1", "add", [1, 3]),
        ("2", "Linear(8, 2)", [4]),
    ]
    assert [box.flops for box in found.boxes] == [0, 2 * 16 * 4 * 8, 2 * 16 * 8 * 8, 128, 128, 2 * 16 * 8 * 2]
    assert [box.bytes_read for box in found.boxes] == [
        0, 4 * (16 * 4 + 4 * 8 + 8), 4 * (128 + 64 + 8), 4 * 128, 4 * 256, 4 * (128 + 16 + 2),
    ]  # fmt: skip
    assert [box.bytes_written for box in found.boxes] == [256, 512, 512, 512, 512, 128]
    assert found.outputs == (5,)


def test_a_layer_applied_twice_in_a_row_is_two_boxes() -> None:
    layer = nn.Linear(4, 4)
    found = diagram(nn.Sequential(layer, layer), (2, 4))
    assert [(box.path, box.reads) for box in found.boxes] == [("input 0", []), ("0", [0]), ("0", [1])]


def test_a_graph_is_drawn_as_it_was_declared() -> None:
    found = diagram(diamond(), (3, 5), (3, 3))
    names = {box.index: box.path for box in found.boxes}
    arrows = {(names[source], box.path) for box in found.boxes for source in box.reads}
    assert arrows >= {("once", "twice"), ("twice", "sum"), ("once", "product"), ("gate.1", "sum"), ("product", "y")}
    assert names[found.outputs[0]] == "y"
    assert [box.label for box in found.boxes[:2]] == ["x", "c"]
    borrowed = diagram(Borrower(), (3, 5), (3, 5))
    assert {box.path for box in borrowed.boxes} >= {"graph.left", "graph.right", "graph.product", "graph.y"}


def test_several_outputs_are_marked() -> None:
    graph = nn.ComputeGraph(
        nn.InputSlot("x"), nn.Node("a", nn.ReLU(), "x"), nn.Node("b", nn.Tanh(), "x"), outputs=("a", "b")
    )
    found = diagram(graph, (2, 3))
    assert [found.boxes[i].path for i in found.outputs] == ["a", "b"]
    assert found.mermaid().count("stroke-width:3px") == found.svg().count('stroke-width="3"') == 2


@ALL
def test_the_work_is_that_of_the_summary(name: str) -> None:
    net, inputs = NETS[name]
    if name == "GPT":
        return
    graph, _ = trace(net, *inputs)
    found = diagram(net, *inputs)
    counted = sum(op.flops for op in graph.ops)
    assert counted and sum(kernel.op.flops for kernel in found.kernels) == counted
    assert sum(box.flops for box in found.boxes) >= counted


@ALL
def test_boxes_come_after_what_they_read_and_every_result_is_used(name: str) -> None:
    found = diagram(NETS[name][0], *NETS[name][1])
    assert all(source < box.index for box in found.boxes for source in box.reads)
    read = {source for box in found.boxes for source in box.reads} | set(found.outputs)
    assert read == {box.index for box in found.boxes}


@ALL
def test_text_has_a_row_a_box(name: str) -> None:
    found = diagram(NETS[name][0], *NETS[name][1])
    lines = found.text().splitlines()
    assert len(lines) == 2 + len(found.boxes)
    for box, line in zip(found.boxes, lines[2:], strict=True):
        assert line.split()[0] == str(box.index) and box.path in line and box.label in line


@ALL
def test_mermaid_is_balanced_and_has_every_arrow(name: str) -> None:
    found = diagram(NETS[name][0], *NETS[name][1])
    lines = [line.strip() for line in found.mermaid().splitlines()]
    assert lines[0] == "graph TD"
    depth = 0
    for line in lines:
        depth += line.startswith("subgraph")
        depth -= line == "end"
        assert depth >= 0
    assert depth == 0
    arrows = {tuple(map(int, re.findall(r"n(\d+)", line))) for line in lines if "-->" in line}
    assert arrows == {(source, box.index) for box in found.boxes for source in box.reads}
    declared = [line for line in lines if re.match(r"n\d+(\(\[|\[)\"[^\"]*\"", line)]
    assert len(declared) == len(found.boxes)
    assert sum("([" in line for line in declared) == len(NETS[name][1])


@ALL
def test_svg_is_well_formed_and_nothing_overlaps(name: str) -> None:
    found = diagram(NETS[name][0], *NETS[name][1])
    root = ET.fromstring(found.svg())
    space = "{http://www.w3.org/2000/svg}"
    boxes = [tuple(float(r.get(key, "")) for key in ("x", "y", "width", "height")) for r in root.iter(f"{space}rect")]
    assert len(boxes) == len(found.boxes)
    assert len(list(root.iter(f"{space}path"))) == 1 + sum(len(box.reads) for box in found.boxes)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for x, y, w, h in boxes:
        assert 0 <= x and x + w <= width and 0 <= y and y + h <= height
    for (x0, y0, w, _), (x1, y1, _, _) in pairwise(sorted(boxes, key=lambda b: (b[1], b[0]))):
        assert y0 != y1 or x0 + w <= x1


def test_labels_are_escaped() -> None:
    class Odd(nn.Module):
        def extra_repr(self) -> str:
            return 'a < b & "c"'

        def forward(self, x):
            return x + 1.0, None

    found = diagram(nn.Sequential(Odd()), (1, 1))
    assert "&lt; b &amp;" in found.svg() and "&quot;c&quot;" in found.mermaid()
    ET.fromstring(found.svg())


# ---- the census ------------------------------------------------------------------------------------------------------


def test_census_of_a_chain() -> None:
    found = census(diagram(NET, (16, 4)))
    assert found.counts == {"matmul": 3, "pointwise": 2, "input": 1}
    assert found.fan_out == {1: 2} and len(found.regions) == 1 and found.saved == 1
    assert diagram(NET, (16, 4)).census() == (
        "fusion census of Sequential: 5 kernels\n"
        "  matmul 3, pointwise 2, input 1\n"
        "  fan-out: 0 is read by 2\n"
        "  pointwise region of 2: activation (1.module.1), add (1)\n"
        "  fused, these would be 1 kernels fewer"
    )


def test_what_a_path_leaves_and_comes_back_to_is_no_region() -> None:
    """x + f(x) where x is pointwise too: the two additions cannot be one kernel, f lies between them."""
    around = nn.Sequential(nn.Tanh(), nn.Residual(nn.Linear(4, 4)))
    assert census(diagram(around, (2, 4))).regions == ()
    beside = nn.Sequential(nn.Tanh(), nn.Residual(nn.Sigmoid()))
    assert [len(region) for region in census(diagram(beside, (2, 4))).regions] == [3]
    through_a_view = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Sigmoid())
    assert [len(region) for region in census(diagram(through_a_view, (2, 2, 2))).regions] == [2]
    assert census(diagram(nn.GPT(11, 6, 2, 2, 8), np.zeros((2, 6), np.int32))).regions == ()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("noeira.linear", "matmul"), ("noeira.conv", "matmul"), ("noeira.attention_packed", "matmul"),
        ("noeira.lstm", "matmul"), ("noeira.gru", "matmul"), ("sin", "pointwise"), ("concat", "memory"),
        ("noeira.dropout", "pointwise"), ("add", "pointwise"), ("noeira.activation", "pointwise"),
        ("reshape", "memory"), ("noeira.embedding", "memory"), ("noeira.fold_in", "rng"),
        ("noeira.cross_entropy", "loss"), ("noeira.row_norm", "other"), ("noeira.softmax", "other"),
    ],
)  # fmt: skip
def test_kinds_of_kernels(name: str, kind: str) -> None:
    assert category(name) == kind and kind in CATEGORIES
