"""One table: a row for every public layer, combinator and loss. The gates iterate over it.

A row says how to make the thing, on which inputs it is tried, which mistakes it refuses and with what words, what
it is in PyTorch, and what it saves for its vjp. A public class without a row fails `tests/nn/primitives/test_gates`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from noeira import nn
from noeira.ops.dropout import threshold
from noeira.ops.random import bits, fold_in, stream_of
from tests.compare import SEED, Case, Twin

Make = Callable[..., Any]
Input = tuple[int, ...] | Callable[[np.random.Generator], np.ndarray]
"""A shape (normal numbers), or a function that draws the array."""


@dataclass(frozen=True)
class Sample:
    """One way to call a row's subject.

    Args:
        label: What is special about it.
        args: Constructor arguments.
        inputs: Its inputs.
        scale: Factor of the normal inputs.
        step: Overrides the row's.
        compiled: Whether `tests/nn/test_families` compiles it too; not where it would repeat what others show.
    """

    label: str
    args: tuple[Any, ...]
    inputs: tuple[Input, ...]
    scale: float = 1.0
    step: float | None = None
    compiled: bool = True


@dataclass(frozen=True)
class Mistake:
    """Something refused: a call that raises `error` with a message that `match`es."""

    label: str
    call: Callable[[], object]
    match: str
    error: type[Exception] = nn.ShapeError


@dataclass(frozen=True)
class Row:
    """One public class, or one mode of it.

    Args:
        name: Class and mode.
        cls: The class the row covers.
        make: Constructor, called with a sample's `args`.
        twin: Takes the subject, gives its PyTorch twin.
        saves: What `forward` saves: "x" and "y" (the very arrays), "z" (an array like y), "shape", "draw", or for a
            loss "target", "lse", "weight". Empty: nothing.
        samples: Inputs.
        mistakes: Errors.
        step: See `Case`.
    """

    name: str
    cls: type
    make: Make
    twin: Callable[[Any], Twin]
    saves: tuple[str, ...]
    samples: tuple[Sample, ...]
    mistakes: tuple[Mistake, ...] = ()
    step: float = 1e-2
    prepare: Callable[[Any], Any] = field(default=lambda subject: subject)

    def case(self, sample: Sample) -> Case:
        """The sample, ready to compare."""
        name = f"{self.name}, {sample.label}"
        rng = np.random.default_rng(len(name))
        inputs = tuple(
            make(rng) if callable(make) else (sample.scale * rng.standard_normal(make)).astype(np.float32)
            for make in sample.inputs
        )
        subject = self.prepare(self.make(*sample.args))
        return Case(name, subject, inputs, self.twin(subject), sample.step or self.step)


KINKS = 1e-6
"""Step of directional differences for functions with kinks: too small to cross one."""

# ---- elementwise -----------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}

ELEMENTWISE = (
    Sample("rank 2", (), ((7, 5),)),
    Sample("batch 1", (), ((1, 13),)),
    Sample("size-1 dimensions", (), ((1, 1, 1),)),
    Sample("rank 3", (), ((2, 3, 11),)),
    Sample("rank 4", (), ((2, 3, 4, 5),)),
    Sample("large magnitudes", (), ((5, 8),), 1e4),
    Sample("small magnitudes", (), ((5, 8),), 1e-4),
    Sample("many elements", (), ((67, 129),), 4.0),
    Sample("empty batch", (), ((0, 5),)),
)


def _elementwise(name: str, cls: type, function: str, make: Make | None = None, **options: Any) -> Row:
    keeps_output = function in ("relu", "tanh", "sigmoid")
    saves = ("y",) if keeps_output else ("x",)
    step = KINKS if function == "relu" else 1e-2
    return Row(
        name, cls, make or cls, lambda _: lambda params, x: ACTIVATIONS[function](x), saves, ELEMENTWISE, step=step,
        **options,
    )  # fmt: skip


def _dropout_mask(shape: tuple[int, ...], p: float, name: str) -> np.ndarray:
    """What the first draw of a layer of this name keeps."""
    key = fold_in(np.array([SEED, 1, 0]), stream_of(name))
    words = bits(int(np.prod(shape)), seed=SEED, step=1, stream=int(key[2])).astype(np.uint64)
    return (words >= threshold(p)).reshape(shape)


def _dropout_twin(layer: nn.Dropout) -> Twin:
    def twin(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        if not layer.training or layer.p == 0:
            return x
        kept = torch.tensor(_dropout_mask(tuple(x.shape), layer.p, "Dropout#1"))
        return torch.where(kept, x / (1 - layer.p), torch.zeros_like(x)) if layer.p < 1 else x * 0

    return twin


DROPOUT = (
    Sample("a half", (0.5,), ((6, 9),)),
    Sample("a tenth, rank 4", (0.1,), ((2, 3, 5, 7),)),
    Sample("batch 1", (0.5,), ((1, 1),)),
    Sample("large magnitudes", (0.3,), ((5, 8),), 1e4),
    Sample("p 0", (0.0,), ((3, 5),)),
    Sample("p 1", (1.0,), ((3, 5),)),
    Sample("empty batch", (0.5,), ((0, 5),)),
)

# ---- linear ----------------------------------------------------------------------------------------------------------

LINEAR = (
    Sample("rank 2", (5, 3), ((7, 5),)),
    Sample("batch 1", (5, 3), ((1, 5),)),
    Sample("size-1 dimensions", (1, 1), ((1, 1),)),
    Sample("one input", (1, 6), ((4, 1),)),
    Sample("one output", (6, 1), ((4, 6),)),
    Sample("primes", (13, 17), ((11, 13),)),
    Sample("rank 3", (5, 3), ((2, 3, 5),)),
    Sample("rank 4", (5, 3), ((2, 1, 4, 5),)),
    Sample("large magnitudes", (5, 3), ((9, 5),), 1e4, step=1e-7),
    Sample("wide", (131, 67), ((37, 131),)),
    Sample("deep", (601, 19), ((5, 601),)),
    Sample("tall", (19, 23), ((513, 19),)),
    Sample("empty batch", (5, 3), ((0, 5),)),
)


ALIAS_SAMPLES = ("rank 2", "batch 1", "rank 3", "primes")
"""What the aliases of LinearAct are tried on; LinearAct itself is tried on everything."""


def _affine(params: dict[str, torch.Tensor], x: torch.Tensor, prefix: str = "") -> torch.Tensor:
    return F.linear(x, params[f"{prefix}weight"].T, params.get(f"{prefix}bias"))


def _linear_twin(function: str | None = None) -> Callable[[Any], Twin]:
    act = ACTIVATIONS[function] if function else lambda z: z
    return lambda _: lambda params, x: act(_affine(params, x))


def _zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def _width_mistakes(cls: type, *options: Any) -> tuple[Mistake, ...]:
    name = cls.__name__
    return (
        Mistake(
            "wrong width",
            lambda: cls(5, 3, *options)(_zeros(2, 4)),
            rf"module {name}\(5, 3.*\): expected an input of shape \[batch, \.\.\., 5\], got \[2, 4\]",
        ),
        Mistake(
            "no batch axis",
            lambda: cls(5, 3, *options)(_zeros(5)),
            rf"module {name}\(5, 3.*\): expected an input of shape .*, got \[5\]",
        ),
        Mistake(
            "float64 to a float32 forward",
            lambda: cls(5, 3, *options).init().forward(_zeros(2, 5, dtype=np.float64)),
            rf"module {name}\(5, 3.*\): expected an input of dtype float32, got float64",
        ),
        Mistake(
            "zero width",
            lambda: cls(0, 3, *options),
            rf"{name}: expected in_features to be a positive integer, got 0",
            ValueError,
        ),
        Mistake(
            "fractional width",
            lambda: cls(3, 2.5, *options),
            rf"{name}: expected out_features to be a positive integer, got 2\.5",
            ValueError,
        ),
    )


def _linear_act(cls: type, function: str, *options: Any) -> Row:
    keeps = "y" if function in ("relu", "tanh", "sigmoid") else "z"
    return Row(
        f"{cls.__name__} {function}" if options else cls.__name__,
        cls,
        lambda *widths: cls(*widths, *options),
        _linear_twin(function),
        ("x", keeps),
        LINEAR if options else tuple(sample for sample in LINEAR if sample.label in ALIAS_SAMPLES),
        _width_mistakes(cls, *options),
        step=KINKS if function == "relu" else 1e-3,
    )


# ---- combinators -----------------------------------------------------------------------------------------------------


def _chain_twin(net: nn.Sequential) -> Twin:
    def twin(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        names = {id(param): name for name, param in net.named_parameters().items()}
        for layer in net:
            if isinstance(layer, nn.Linear):
                weight = params[names[id(layer.weight)]]
                x = F.linear(x, weight.T, params[names[id(layer.bias)]] if layer.bias else None)
                x = ACTIVATIONS[layer.function](x) if isinstance(layer, nn.LinearAct) else x
            elif isinstance(layer, nn.Activation):
                x = ACTIVATIONS[layer._name()](x)
            elif isinstance(layer, nn.Flatten):
                x = x.flatten(1)
            elif isinstance(layer, nn.Sequential):
                inner = _chain_twin(layer)
                x = inner({n: params[names[id(p)]] for n, p in layer.named_parameters().items()}, x)
        return x

    return twin


def _shared_chain() -> nn.Sequential:
    layer = nn.LinearTanh(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer)


def _chain(kind: str) -> nn.Sequential:
    return {
        "mlp": lambda: nn.Sequential(nn.LinearTanh(5, 3), nn.LinearGELU(3, 5), nn.Linear(5, 3)),
        "unfused": lambda: nn.Sequential(nn.Linear(5, 5), nn.Mish(), nn.Linear(5, 5, bias=False), nn.Sigmoid()),
        "flatten": lambda: nn.Sequential(nn.Flatten(), nn.LinearSwish(5, 5), nn.Linear(5, 5)),
        "nested": lambda: nn.Sequential(nn.Linear(5, 5), nn.Sequential(nn.SiLU(), nn.Linear(5, 5)), nn.GELU("tanh")),
        "shared": _shared_chain,
        "one": lambda: nn.Sequential(nn.Linear(5, 5)),
    }[kind]()


CHAINS = (
    Sample("MLP", ("mlp",), ((7, 5),)),
    Sample("MLP, batch 1", ("mlp",), ((1, 5),)),
    Sample("MLP, rank 3", ("mlp",), ((2, 3, 5),)),
    Sample("MLP, empty batch", ("mlp",), ((0, 5),)),
    Sample("unfused", ("unfused",), ((7, 5),)),
    Sample("flatten", ("flatten",), ((4, 5, 1),)),
    Sample("nested", ("nested",), ((7, 5),)),
    Sample("a layer applied twice", ("shared",), ((4, 5),)),
    Sample("one module", ("one",), ((4, 5),)),
)

CHAIN_MISTAKES = (
    Mistake(
        "widths that do not fit",
        lambda: nn.Sequential(nn.LinearReLU(784, 256), nn.Tanh(), nn.Linear(128, 10)),
        r"Sequential: module '2' \(Linear\(128, 10\)\) expects 128 features on axis -1, "
        r"but module '0' \(LinearReLU\(784, 256\)\) gives 256",
        nn.CompositionError,
    ),
    Mistake(
        "a nested chain that does not fit",
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.ReLU(), nn.Linear(5, 2))),
        r"module '1' \(Sequential.*\) expects 5 features on axis -1, but module '0' \(Linear\(4, 6\)\) gives 6",
        nn.CompositionError,
    ),
    Mistake(
        "not a module",
        lambda: nn.Sequential(nn.Linear(4, 6), np.tanh),
        r"Sequential: expected modules, got ufunc at position 1",
        nn.CompositionError,
    ),
    Mistake(
        "wrong input, named by path",
        lambda: nn.Sequential(nn.Sequential(nn.Tanh(), nn.Linear(4, 6)), nn.ReLU())(_zeros(2, 3)),
        r"module '0\.1' \(Linear\(4, 6\)\): expected an input of shape \[batch, \.\.\., 4\], got \[2, 3\]",
    ),
)

# ---- losses ----------------------------------------------------------------------------------------------------------

WEIGHTS = (0.5, 2.0, 1.0, 0.25, 3.0)
"""Class weights that float32 holds exactly."""


def _labels(*shape: int, classes: int = 5, ignored: int | None = None) -> Input:
    def draw(rng: np.random.Generator) -> np.ndarray:
        labels = rng.integers(0, classes, shape).astype(np.int32)
        if ignored is not None and labels.size:
            labels.reshape(-1)[:: 3 if labels.size > 1 else 2] = ignored
        return labels

    return draw


def _rows(*shape: int) -> Input:
    def draw(rng: np.random.Generator) -> np.ndarray:
        rows = rng.dirichlet(np.ones(shape[-1]), shape[:-1]).reshape(shape)
        return rows.astype(np.float32)

    return draw


def _cross_entropy_twin(loss: nn.CrossEntropyLoss) -> Twin:
    def twin(params: dict[str, torch.Tensor], logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        flat = logits.reshape(-1, logits.shape[-1])
        soft = target.is_floating_point()
        rows = target.reshape(flat.shape) if soft else target.reshape(-1).long()
        if not len(rows) or (not soft and (rows == loss.ignore_index).all()):
            return flat.sum() * 0  # PyTorch divides 0 by 0 here
        weight = None if loss.class_weight is None else torch.tensor(loss.class_weight, dtype=logits.dtype)
        return F.cross_entropy(flat, rows, weight, ignore_index=loss.ignore_index, label_smoothing=loss.label_smoothing)

    return twin


def _label_samples(ignored: int | None = None) -> tuple[Sample, ...]:
    draw = lambda *shape: _labels(*shape, ignored=ignored)  # noqa: E731
    return (
        Sample("rank 2", (), ((7, 5), draw(7))),
        Sample("batch 1", (), ((1, 5), _labels(1))),
        Sample("rank 3", (), ((3, 4, 5), draw(3, 4))),
        Sample("rank 4", (), ((2, 1, 3, 5), draw(2, 1, 3))),
        Sample("large magnitudes", (), ((6, 5), draw(6)), 1e4),
        Sample("many rows", (), ((211, 5), draw(211))),
        Sample("empty batch", (), ((0, 5), draw(0))),
    )


SOFT_SAMPLES = (
    Sample("rank 2", (), ((7, 5), _rows(7, 5))),
    Sample("batch 1", (), ((1, 5), _rows(1, 5))),
    Sample("rank 3", (), ((3, 4, 5), _rows(3, 4, 5))),
    Sample("large magnitudes", (), ((6, 5), _rows(6, 5)), 1e4),
    Sample("empty batch", (), ((0, 5), _rows(0, 5))),
)


def _loss(name: str, samples: tuple[Sample, ...], mistakes: tuple[Mistake, ...] = (), **options: Any) -> Row:
    return Row(
        f"CrossEntropyLoss, {name}",
        nn.CrossEntropyLoss,
        lambda: nn.CrossEntropyLoss(**options),
        _cross_entropy_twin,
        ("x", "target", "lse", "weight"),
        samples,
        mistakes,
    )


LOSS_MISTAKES = (
    Mistake(
        "label out of range",
        lambda: nn.CrossEntropyLoss()(_zeros(4, 3), np.array([0, 1, 3, 0])),
        r"expected class labels 0\.\.2, got 3 in row 2",
    ),
    Mistake(
        "negative label",
        lambda: nn.CrossEntropyLoss()(_zeros(2, 3), np.array([0, -1])),
        r"expected class labels 0\.\.2, got -1 in row 1",
    ),
    Mistake(
        "label far out of range",
        lambda: nn.CrossEntropyLoss()(_zeros(1, 3), np.array([2**40])),
        r"expected class labels 0\.\.2, got 1099511627776 in row 0",
    ),
    Mistake(
        "too few labels",
        lambda: nn.CrossEntropyLoss()(_zeros(4, 3), np.zeros(3, np.int64)),
        r"CrossEntropyLoss: for logits \[4, 3\] expected integer labels of shape \[4\], got \[3\]",
    ),
    Mistake(
        "floating-point labels",
        lambda: nn.CrossEntropyLoss()(_zeros(4, 3), np.zeros(4)),
        r"expected probabilities \(float64\) of shape \[4, 3\], got \[4\]",
    ),
    Mistake(
        "too few class weights",
        lambda: nn.CrossEntropyLoss([1.0, 2.0])(_zeros(4, 3), np.zeros(4, np.int64)),
        r"CrossEntropyLoss: expected 3 class weights, got 2",
    ),
    Mistake(
        "a matrix of class weights",
        lambda: nn.CrossEntropyLoss([[1.0, 2.0]]),
        r"CrossEntropyLoss: expected one weight a class, got shape \(1, 2\)",
        ValueError,
    ),
    Mistake(
        "smoothing above 1",
        lambda: nn.CrossEntropyLoss(label_smoothing=1.5),
        r"CrossEntropyLoss: expected label_smoothing to be a number between 0 and 1, got 1\.5",
        ValueError,
    ),
)

# ---- the table -------------------------------------------------------------------------------------------------------

FLATTEN = (
    Sample("rank 4", (), ((2, 3, 4, 5),)),
    Sample("rank 3", (), ((3, 1, 7),)),
    Sample("rank 2", (), ((4, 6),)),
    Sample("size-1 dimensions", (), ((1, 1, 1, 1),)),
    Sample("large magnitudes", (), ((3, 2, 2),), 1e4),
    Sample("empty batch", (), ((0, 3, 4),)),
)

ROWS: tuple[Row, ...] = (
    Row("Linear", nn.Linear, nn.Linear, _linear_twin(), ("x",), LINEAR, _width_mistakes(nn.Linear)),
    Row("Linear, no bias", nn.Linear, lambda *w: nn.Linear(*w, bias=False), _linear_twin(), ("x",), LINEAR),
    *(_linear_act(nn.LinearAct, function, function) for function in ACTIVATIONS),
    _linear_act(nn.LinearReLU, "relu"),
    _linear_act(nn.LinearTanh, "tanh"),
    _linear_act(nn.LinearSigmoid, "sigmoid"),
    _linear_act(nn.LinearSwish, "silu"),
    _linear_act(nn.LinearMish, "mish"),
    _linear_act(nn.LinearGELU, "gelu"),
    _elementwise("ReLU", nn.ReLU, "relu"),
    _elementwise("Tanh", nn.Tanh, "tanh"),
    _elementwise("Sigmoid", nn.Sigmoid, "sigmoid"),
    _elementwise("SiLU", nn.SiLU, "silu"),
    _elementwise("Mish", nn.Mish, "mish"),
    _elementwise(
        "GELU",
        nn.GELU,
        "gelu",
        mistakes=(
            Mistake(
                "unknown approximation",
                lambda: nn.GELU("erf"),
                r"GELU: expected approximate to be 'none' or 'tanh', got 'erf'",
                ValueError,
            ),
        ),
    ),
    _elementwise("GELU, tanh", nn.GELU, "gelu_tanh", lambda: nn.GELU("tanh")),
    Row("Flatten", nn.Flatten, nn.Flatten, lambda _: lambda params, x: x.flatten(1), ("shape",), FLATTEN),
    Row(
        "Dropout",
        nn.Dropout,
        nn.Dropout,
        _dropout_twin,
        ("draw",),
        DROPOUT,
        tuple(
            Mistake(f"p {p}", lambda p=p: nn.Dropout(p), rf"expected p to be a number .* 0 and 1, got {p}", ValueError)
            for p in (-0.1, 1.5, float("nan"))
        ),
    ),
    Row("Dropout, evaluation", nn.Dropout, nn.Dropout, _dropout_twin, (), DROPOUT[:2], prepare=nn.Dropout.eval),
    Row("Sequential", nn.Sequential, _chain, _chain_twin, ("chain",), CHAINS, CHAIN_MISTAKES, step=4e-3),
    Row(
        "Repeat",
        nn.Repeat,
        lambda depth: nn.Repeat(depth, lambda: nn.LinearTanh(5, 5)),
        _chain_twin,
        ("chain",),
        (Sample("three", (3,), ((7, 5),)), Sample("one", (1,), ((1, 5),))),
        (
            Mistake(
                "none", lambda: nn.Repeat(0, nn.Tanh), r": expected count to be a positive integer, got 0", ValueError
            ),
        ),
        step=4e-3,
    ),
    _loss("labels", _label_samples(), LOSS_MISTAKES),
    _loss("ignored rows", _label_samples(-100)),
    _loss("smoothing", _label_samples(), label_smoothing=0.125),
    _loss("class weights", _label_samples(), weight=WEIGHTS),
    _loss("everything", _label_samples(2), weight=WEIGHTS, ignore_index=2, label_smoothing=0.125),
    _loss("everything smoothed", _label_samples(-1), weight=WEIGHTS, ignore_index=-1, label_smoothing=1.0),
    _loss("probabilities", SOFT_SAMPLES),
    _loss("probabilities, smoothing, class weights", SOFT_SAMPLES, weight=WEIGHTS, label_smoothing=0.125),
)

BASES = (nn.Module, nn.Activation, nn.BatchNorm, nn.ElementwiseLoss, nn.Formula, nn.Loss)
"""Public classes that are bases only."""

LINEAR_ACT_MISTAKES = (
    Mistake("unknown name", lambda: nn.LinearAct(5, 3, "swoosh"), r"expected an activation out of .*, got 'swoosh'"),
    Mistake("no name", lambda: nn.LinearAct(5, 3), r"LinearAct: expected an activation name, got None", ValueError),
)


def every_row() -> list[Row]:
    """The rows of all families; those that only some gates suit are among them."""
    families = [
        importlib.import_module(f"tests.{path.stem}") for path in sorted(Path(__file__).parent.glob("catalogue*.py"))
    ]
    rows = {id(row): row for family in families for row in (*family.ROWS, *getattr(family, "GATED", ()))}
    return list(rows.values())


def missing(exported: dict[str, object], rows: tuple[Row, ...] = ROWS) -> list[str]:
    """Names of the layers and losses among `exported` that no row covers."""
    covered = {row.cls for row in rows}
    return sorted(
        name
        for name, value in exported.items()
        if isinstance(value, type)
        and issubclass(value, nn.Module | nn.Loss)
        and value not in BASES
        and value not in covered
    )


def cases() -> list[Any]:
    """All (row, sample) pairs, with readable ids."""
    return [pytest.param(row, sample, id=f"{row.name}, {sample.label}") for row in ROWS for sample in row.samples]


def mistakes() -> list[Any]:
    """All mistakes, with readable ids."""
    found = [(row.name, mistake) for row in ROWS for mistake in row.mistakes]
    found += [("LinearAct", mistake) for mistake in LINEAR_ACT_MISTAKES]
    return [pytest.param(mistake, id=f"{name}, {mistake.label}") for name, mistake in found]
