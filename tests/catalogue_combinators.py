"""Rows of arithmetic, graphs, composed forwards and conditional stacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from noeira import nn
from noeira.ops import dropout
from noeira.ops.random import fold_in, stream_of
from tests.catalogue import Input, Mistake, Row, Sample, _zeros
from tests.compare import SEED, Twin

Params = dict[str, torch.Tensor]


def _affine(params: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    y = x @ params[f"{name}.weight"]
    return y + params[f"{name}.bias"] if f"{name}.bias" in params else y


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def _away_from_zero(*shape: int) -> Input:
    return lambda rng: (rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)).astype(np.float32)


PAIRS = (
    Sample("rank 2", (), ((7, 5), _away_from_zero(7, 5))),
    Sample("batch 1", (), ((1, 3), _away_from_zero(1, 3))),
    Sample("broadcast", (), ((3, 1, 5), _away_from_zero(3, 4, 1))),
    Sample("large magnitudes", (), ((3, 5), _away_from_zero(3, 5)), 1e4),
    Sample("empty batch", (), ((0, 5), _away_from_zero(0, 5))),
)


def _arithmetic(cls: type, function: Callable[[Any, Any], Any]) -> Row:
    name = cls.__name__
    return Row(name, cls, cls, lambda _: lambda params, a, b: function(a, b), ("chain",), PAIRS,
        (Mistake("three inputs", lambda: cls()(_zeros(1, 1), _zeros(1, 1), _zeros(1, 1)),
                 rf"module {name}\(\): expected 2 inputs \(a, b\), got 3"),
         Mistake("shapes that do not broadcast", lambda: cls()(_zeros(2, 3), _zeros(2, 4)),
                 rf"module {name}\(\): shapes \[2, 3\] and \[2, 4\] do not broadcast")))  # fmt: skip


# ---- graphs ----------------------------------------------------------------------------------------------------------


def diamond() -> nn.ComputeGraph:
    """Two inputs; a value read three times, a layer used twice, a node declared before what it reads."""
    shared = nn.LinearTanh(5, 5)
    return nn.ComputeGraph(
        nn.InputSlot("x", 5),
        nn.InputSlot("c", (-1, 3)),
        nn.Node("once", shared, "x"),
        nn.Node("sum", nn.Add(), "twice", "gate", "once"),
        nn.Node("gate", nn.Sequential(nn.Linear(3, 5), nn.Sigmoid()), "c"),
        nn.Node("twice", shared, "once"),
        nn.Node("product", nn.Multiply(), "sum", "once"),
        nn.Node("y", nn.Linear(5, 2), "product"),
    )


def _diamond(params: Params, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    once = torch.tanh(_affine(params, "once", x))
    twice = torch.tanh(_affine(params, "once", once))
    total = twice + torch.sigmoid(_affine(params, "gate.0", c)) + once
    return _affine(params, "y", total * once)


class Borrower(nn.Module):
    """Owns what its graph borrows: the graph's external node is the model's encoder."""

    def __init__(self) -> None:
        self.encoder = nn.LinearTanh(5, 4)
        self.graph = nn.ComputeGraph(
            nn.InputSlot("a"),
            nn.InputSlot("b"),
            nn.ExternalNode("left", self.encoder, "a"),
            nn.ExternalNode("right", self.encoder, "b"),
            nn.Node("product", nn.Multiply(), "left", "right"),
            nn.Node("y", nn.Linear(4, 3), "product"),
        )

    @nn.composed
    def forward(self, a: Any, b: Any) -> Any:
        return self.graph(a, b)


def _borrower(params: Params, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    left, right = (torch.tanh(_affine(params, "encoder", x)) for x in (a, b))
    return _affine(params, "graph.y", left * right)


class Tour(nn.Module):
    """Everything a composed forward may do."""

    def __init__(self) -> None:
        self.layers = [nn.LinearTanh(5, 5), nn.LinearGELU(5, 5)]
        self.scale = nn.Sequential(nn.Linear(5, 5), nn.Softplus())
        self.head = nn.Linear(5, 3)

    @nn.composed
    def forward(self, x: Any) -> Any:
        h = x
        for layer in self.layers:
            h = h + layer(h)
        if h.shape[-1] == 5:
            h = (2 - h) * 0.5 - x / (self.scale(x) + 1.0)
        return -self.head(h)


def _tour(params: Params, x: torch.Tensor) -> torch.Tensor:
    h = x + torch.tanh(_affine(params, "layers.0", x))
    h = h + F.gelu(_affine(params, "layers.1", h))
    h = (2 - h) * 0.5 - x / (F.softplus(_affine(params, "scale.0", x)) + 1)
    return -_affine(params, "head", h)


class Dropped(nn.Module):
    """Dropout in a composed forward."""

    def __init__(self) -> None:
        self.body, self.drop, self.head = nn.LinearTanh(5, 5), nn.Dropout(0.5), nn.Linear(5, 2)

    @nn.composed
    def forward(self, x: Any) -> Any:
        return self.head(x + self.drop(self.body(x)))


def _dropped(params: Params, x: torch.Tensor) -> torch.Tensor:
    h = torch.tanh(_affine(params, "body", x))
    key = fold_in(np.array([SEED, 1, 0]), stream_of("drop#1"))
    mask = torch.tensor(dropout(np.ones(tuple(h.shape)), key, 0.5), dtype=h.dtype)
    return _affine(params, "head", x + h * mask)


def _graph(*parts: nn.InputSlot | nn.Node, **options: Any) -> Callable[[], nn.ComputeGraph]:
    return lambda: nn.ComputeGraph(*parts, **options)


def _refused(label: str, match: str, *parts: Any, **options: Any) -> Mistake:
    return Mistake(label, _graph(*parts, **options), match, nn.CompositionError)


X = nn.InputSlot("x", 4)
GRAPH_MISTAKES = (
    _refused("unknown name", r"ComputeGraph: node 'y' \(Linear\(4, 3\)\) reads 'hiden', which is none of: x, hidden, y; "
             r"did you mean 'hidden'\?",
             X, nn.Node("hidden", nn.Linear(4, 4), "x"), nn.Node("y", nn.Linear(4, 3), "hiden")),
    _refused("a cycle", r"nodes read each other in a cycle: b -> c -> b",
             X, nn.Node("a", nn.Add(), "x"), nn.Node("b", nn.Add(), "a", "c"), nn.Node("c", nn.ReLU(), "b")),
    _refused("a node that reads itself", r"in a cycle: a -> a", X, nn.Node("a", nn.Add(), "x", "a")),
    _refused("a name twice", r"two parts are called 'x'", X, nn.Node("x", nn.ReLU(), "x")),
    _refused("a name with a dot", r"expected a name that is an identifier, got 'a\.b'", X,
             nn.Node("a.b", nn.ReLU(), "x")),
    _refused("no nodes", r"expected at least one node, got none", X),
    _refused("no inputs", r"node 'a' \(Add\(\)\) reads nothing", X, nn.Node("a", nn.Add())),
    _refused("too many inputs", r"node 'a' \(ReLU\(\)\) reads 2 inputs \(x, x\), which its forward does not take",
             X, nn.Node("a", nn.ReLU(), "x", "x")),
    _refused("a module bare", r"expected an InputSlot, Node or ExternalNode, got ReLU at position 1", X, nn.ReLU()),
    _refused("no module", r"expected a module in node 'a', got function", X, nn.Node("a", lambda x: x, "x")),
    _refused("unknown output", r"cannot give 'x', which is none of: a", X, nn.Node("a", nn.ReLU(), "x"), outputs="x"),
    _refused("no output", r"expected at least one output", X, nn.Node("a", nn.ReLU(), "x"), outputs=()),
    _refused("widths that do not fit, by path",
             r"node 'b\.1\.0' \(Sequential\(\)\) expects 5 features on axis -1, "
             r"but node 'a' \(Linear\(4, 3\)\) gives 3 features",
             X, nn.Node("a", nn.Linear(4, 3), "x"),
             nn.Node("b", nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(5, 5))), "a")),
    _refused("a slot of another width", r"node 'a' \(Linear\(3, 2\)\) expects 3 .*, but input 'x' has 4 features",
             X, nn.Node("a", nn.Linear(3, 2), "x")),
    _refused("two readers of two widths",
             r"node 'b' \(Linear\(4, 2\)\) expects 4 .*, but node 'a' \(Linear\(3, 2\)\) expects of input 'x' 3",
             nn.InputSlot("x"), nn.Node("a", nn.Linear(3, 2), "x"), nn.Node("b", nn.Linear(4, 2), "x")),
    Mistake("an input of another width", lambda: diamond()(_zeros(2, 4), _zeros(2, 3)),
            r"module ComputeGraph\(x, c -> y\): expected input 'x' with 5 features on axis -1, got \[2, 4\]"),
    Mistake("a missing input", lambda: diamond()(_zeros(2, 5)),
            r"expected input 'c', which node 'gate' \(Sequential\(\)\) reads, got none"),
    Mistake("an unknown input", lambda: diamond()(x=_zeros(2, 5), d=_zeros(2, 3)),
            r"no input is called 'd', which is none of: x, c"),
    Mistake("an input twice", lambda: diamond()(_zeros(2, 5), x=_zeros(2, 5)), r"input 'x' was given twice"),
    Mistake("too many", lambda: diamond()(*[_zeros(2, 5)] * 3), r"expected at most 2 inputs \(x, c\), got 3"),
    Mistake("a part of an array", lambda: nn.ComputeGraph(
        X, nn.Node("a", nn.ReLU(), "x"), nn.Node("b", nn.ReLU(), "a.1"))(_zeros(2, 4)),
        r"'a\.1' is read by node 'b' \(ReLU\(\)\), but 'a' gives 1 output"),
    Mistake("an error inside, by path", lambda: nn.Sequential(nn.ComputeGraph(
        nn.InputSlot("x"), nn.Node("a", nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), "x")))(_zeros(2, 4)),
        r"module '0\.a\.1' \(Linear\(3, 2\)\): expected an input of shape \[batch, \.\.\., 3\], got \[2, 4\]"),
    Mistake("an error in an external node, by path", lambda: nn.Sequential(nn.ComputeGraph(
        nn.InputSlot("x"), nn.ExternalNode("a", nn.Linear(3, 2), "x")))(_zeros(2, 4)),
        r"module '0\.a' \(Linear\(3, 2\)\): expected an input of shape"),
)  # fmt: skip


# ---- conditional stacks ----------------------------------------------------------------------------------------------


class Film(nn.Module):
    """x + tanh(x W + a) (c V + b)."""

    def __init__(self) -> None:
        self.body, self.condition = nn.LinearTanh(5, 5), nn.Linear(3, 5)

    @nn.composed
    def forward(self, x: Any, c: Any) -> Any:
        return x + self.body(x) * self.condition(c)


def _film(net: nn.RepeatConditional) -> Twin:
    def twin(params: Params, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        for i in range(len(net)):
            x = x + torch.tanh(_affine(params, f"{i}.body", x)) * _affine(params, f"{i}.condition", c)
        return x

    return twin


CONDITIONED = (
    Sample("three", (3,), ((7, 5), (7, 3))),
    Sample("one, batch 1", (1,), ((1, 5), (1, 3))),
    Sample("empty batch", (2,), ((0, 5), (0, 3))),
)
TWO = (
    Sample("rank 2", (), ((7, 5), (7, 3))),
    Sample("batch 1", (), ((1, 5), (1, 3))),
    Sample("empty batch", (), ((0, 5), (0, 3))),
)
RANKS = (Sample("rank 2", (), ((6, 5),)), Sample("rank 3", (), ((2, 3, 5),)), Sample("empty batch", (), ((0, 5),)))

# ---- random graphs ---------------------------------------------------------------------------------------------------

WIDTH = 4
KINDS = ("linear", "shared", "tanh", "sum", "difference", "product")


def grow(choose: Callable[[Sequence[Any]], Any], kinds: Sequence[str] = KINDS) -> nn.ComputeGraph:
    """A graph of up to eight nodes in any order of declaration, some shared, all read; `choose` picks one of several."""
    slots = [f"x{i}" for i in range(choose((1, 2, 3)))]
    shared = nn.LinearTanh(WIDTH, WIDTH)
    names, nodes = list(slots), []
    for i in range(choose(range(1, 9))):
        kind = choose(kinds)
        module, count = {
            "linear": (nn.Linear(WIDTH, WIDTH), 1),
            "shared": (shared, 1),
            "tanh": (nn.Tanh(), 1),
            "sum": (nn.Add(), choose((1, 2, 3))),
            "difference": (nn.Subtract(), 2),
            "product": (nn.Multiply(), 2),
        }[kind]
        nodes.append(nn.Node(f"n{i}", module, *(choose(names) for _ in range(count))))
        names.append(f"n{i}")
    nodes.append(nn.Node("y", nn.Add(), *names))
    order = []
    while nodes:
        order.append(nodes.pop(choose(range(len(nodes)))))
    return nn.ComputeGraph(*(nn.InputSlot(name) for name in slots), *order, outputs="y")


def random_graph(seed: int) -> nn.ComputeGraph:
    """A graph of the seed, without differences: MAX folds x - x to 0 and 0 x to 0, where NaN and infinities would show."""
    rng = np.random.default_rng(seed)
    return grow(lambda items: items[rng.integers(len(items))], [kind for kind in KINDS if kind != "difference"])


def by_autograd(graph: nn.ComputeGraph) -> Twin:
    """The graph of `grow` in PyTorch, evaluated by need."""
    names = {id(param): name for name, param in graph.named_parameters().items()}

    def twin(params: Params, *inputs: torch.Tensor) -> torch.Tensor:
        values = dict(zip(graph.inputs, inputs, strict=True))

        def value(name: str) -> torch.Tensor:
            if name not in values:
                node = graph.nodes[name]
                x = [value(source) for source in node.inputs]
                match node.module:
                    case nn.Linear() as layer:
                        y = x[0] @ params[names[id(layer.weight)]] + params[names[id(layer.bias)]]
                        values[name] = torch.tanh(y) if isinstance(layer, nn.LinearTanh) else y
                    case nn.Tanh():
                        values[name] = torch.tanh(x[0])
                    case nn.Add():
                        values[name] = sum(x[1:], x[0])
                    case nn.Subtract():
                        values[name] = x[0] - x[1]
                    case nn.Multiply():
                        values[name] = x[0] * x[1]
            return values[name]

        return value("y")

    return twin


def _random_samples() -> tuple[Sample, ...]:
    return tuple(
        Sample(f"seed {seed}", (seed,), ((3, WIDTH),) * len(random_graph(seed).inputs), 0.5) for seed in range(8)
    )


# ---- branches --------------------------------------------------------------------------------------------------------


def _maps(params: Params, x: torch.Tensor, name: str) -> torch.Tensor:
    return F.conv2d(x, params[f"{name}.weight"], params[f"{name}.bias"], padding=1)


MAPS = (Sample("images", (), ((2, 3, 4, 5),)), Sample("empty batch", (), ((0, 3, 4, 5),)))


def _joined_mistakes(cls: type) -> tuple[Mistake, ...]:
    name = cls.__name__
    return (
        Mistake("not a module", lambda: cls(np.tanh), rf"{name}: expected (a module|modules), got ufunc",
                nn.CompositionError),
        Mistake("no axis", lambda: cls(nn.ReLU(), axis="channels"), rf"{name}: expected axis to be an axis number, got 'channels'",
                ValueError),
        Mistake("images joined on the last axis", lambda: cls(nn.Conv2D(3, 2, 3)),
                rf"{name}: .*Conv2D\(3, 2, .*\) has [23] features on axis 1, but outputs are joined on axis -1: "
                r"expected axis=1", nn.CompositionError),
        Mistake("features joined on axis 1", lambda: cls(nn.Linear(3, 2), axis=1),
                r"Linear\(3, 2\) has [23] features on axis -1, .* expected axis=-1" if cls is nn.SkipConcat else
                r"module '0' \(Linear\(3, 2\)\) has 2 features on axis -1, .* expected axis=-1",
                nn.CompositionError),
        Mistake("outputs that differ on another axis", lambda: cls(nn.Flatten())(_zeros(2, 3, 4)) if
                cls is nn.SkipConcat else cls(nn.Flatten(), nn.ReLU())(*[_zeros(2, 3, 4)] * (1 + (cls is nn.BranchConcat))),
                rf"module {name}\(\): expected (arrays that differ on axis|an axis of)"),
    )  # fmt: skip


ROWS: tuple[Row, ...] = (
    Row("Parallel", nn.Parallel, lambda: nn.Parallel(nn.LinearTanh(5, 3), nn.GELU(), nn.Linear(5, 1, bias=False)),
        lambda _: lambda p, x: torch.cat([torch.tanh(_affine(p, "0", x)), F.gelu(x), _affine(p, "2", x)], -1),
        ("chain",), RANKS,
        (*_joined_mistakes(nn.Parallel),
         Mistake("nothing", nn.Parallel, r"Parallel: expected at least one module, got none", nn.CompositionError),
         Mistake("branches of two widths", lambda: nn.Parallel(nn.ReLU(), nn.Linear(4, 3), nn.Linear(5, 3)),
                 r"Parallel: module '2' \(Linear\(5, 3\)\) expects 5 .*, but module '1' \(Linear\(4, 3\)\) expects 4",
                 nn.CompositionError),
         Mistake("wrong input, by path", lambda: nn.Sequential(nn.Parallel(nn.ReLU(), nn.Linear(4, 3)))(_zeros(2, 5)),
                 r"module '0\.1' \(Linear\(4, 3\)\): expected an input of shape"))),
    Row("Parallel, channels", nn.Parallel,
        lambda: nn.Parallel(nn.Conv2D(3, 2, 3, padding=1), nn.Tanh(), nn.Conv2D(3, 1, 3, padding=1), axis=1),
        lambda _: lambda p, x: torch.cat([_maps(p, x, "0"), torch.tanh(x), _maps(p, x, "2")], 1), ("chain",), MAPS),
    Row("BranchConcat", nn.BranchConcat, lambda: nn.BranchConcat(nn.LinearTanh(5, 4), nn.Linear(3, 2)),
        lambda _: lambda p, x, c: torch.cat([torch.tanh(_affine(p, "0", x)), _affine(p, "1", c)], -1), ("chain",), TWO,
        (*_joined_mistakes(nn.BranchConcat),
         Mistake("one input too few", lambda: nn.BranchConcat(nn.ReLU(), nn.ReLU())(_zeros(2, 5)),
                 r"module BranchConcat\(\): expected 2 inputs, one a branch, got 1"))),
    Row("SkipConcat", nn.SkipConcat, lambda: nn.SkipConcat(nn.LinearTanh(5, 3)),
        lambda _: lambda p, x: torch.cat([x, torch.tanh(_affine(p, "module", x))], -1), ("chain",), RANKS,
        _joined_mistakes(nn.SkipConcat)),
    Row("SkipConcat, channels", nn.SkipConcat,
        lambda: nn.Sequential(nn.SkipConcat(nn.Conv2D(3, 2, 3, padding=1), axis=1), nn.Conv2D(5, 1, 3, padding=1)),
        lambda _: lambda p, x: _maps(p, torch.cat([x, _maps(p, x, "0.module")], 1), "1"), ("chain",), MAPS),
    Row("Add", nn.Add, nn.Add, lambda _: lambda params, *x: sum(x[1:], x[0]), ("chain",),
        (*PAIRS, Sample("three", (), ((4, 5), (4, 1), (4, 5))), Sample("one", (), ((4, 5),))),
        (Mistake("nothing", lambda: nn.Add()(), r"expected at least one input to add, got none"),)),
    _arithmetic(nn.Subtract, lambda a, b: a - b),
    _arithmetic(nn.Multiply, lambda a, b: a * b),
    _arithmetic(nn.Divide, lambda a, b: a / b),
    Row("ComputeGraph", nn.ComputeGraph, diamond, lambda _: _diamond, ("chain",), TWO, GRAPH_MISTAKES, step=4e-3),
    Row("ComputeGraph, random", nn.ComputeGraph, random_graph, by_autograd, ("chain",), _random_samples(), step=1e-3),
    Row("ComputeGraph, external nodes", Borrower, Borrower, lambda _: _borrower, ("chain",),
        (Sample("rank 2", (), ((4, 5), (4, 5))),), step=4e-3),
    Row("composed", Tour, Tour, lambda _: _tour, ("chain",), RANKS, step=4e-3),
    Row("composed, dropout, checkpointed", nn.Checkpointed, lambda: nn.Checkpointed(Dropped()), lambda _: _dropped,
        ("chain",), RANKS[:1], step=4e-3),
    Row("RepeatConditional", nn.RepeatConditional, lambda depth: nn.RepeatConditional(depth, Film), _film, ("chain",),
        CONDITIONED,
        (Mistake("none", lambda: nn.RepeatConditional(0, Film), r": expected count to be a positive integer, got 0",
                 ValueError),), step=4e-3),
)  # fmt: skip
