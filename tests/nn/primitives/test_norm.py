"""The normalisation, softmax, embedding and elementwise families through the gates, on the reference and compiled."""

import re
from typing import Any

import numpy as np
import pytest

from noeira.runtime.programs import Program, build
from tests.catalogue import Mistake, Row, Sample
from tests.catalogue_norm import GATED, ROWS
from tests.compare import (
    GATES,
    Case,
    assert_central_differences,
    assert_close,
    assert_dot_product,
    assert_doubled,
    assert_float32,
    assert_identical,
    assert_propagates,
    assert_reference_float32,
    assert_torch,
    reference,
)
from tests.compiled import CPU, first_programs, run_case, stage

ALL = (*ROWS, *GATED)


def _cases(rows: tuple[Row, ...]) -> list[Any]:
    return [pytest.param(row, s, id=f"{row.name}, {s.label}") for row in rows for s in row.samples]


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.__name__.removeprefix("assert_"))
@pytest.mark.parametrize(("row", "sample"), _cases(ROWS))
def test_gate(row: Row, sample: Sample, gate: Any) -> None:
    gate(row.case(sample))


@pytest.mark.parametrize("gate", [assert_torch, assert_reference_float32])
@pytest.mark.parametrize(("row", "sample"), _cases(GATED))
def test_gated(row: Row, sample: Sample, gate: Any) -> None:
    gate(row.case(sample))


MISTAKES = [pytest.param(m, id=f"{row.name}, {m.label}") for row in ALL for m in row.mistakes]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_refused_in_words(mistake: Mistake) -> None:
    with pytest.raises(mistake.error, match=mistake.match):
        mistake.call()


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
def test_saves_what_the_row_says(row: Row) -> None:
    case = row.case(row.samples[0])
    inputs = case.inputs_as("float32")
    y, saved = case.subject.forward(*inputs)
    kept = () if saved is None else saved if isinstance(saved, tuple) and row.saves != ("shape",) else (saved,)
    assert len(kept) == len(row.saves)
    wanted: dict[str, Any] = {"x": inputs[0], "y": y, "second": inputs[1:2], "third": inputs[2:3]}
    for value, what in zip(kept, row.saves, strict=True):
        match what:
            case "stats":
                assert value.shape[-1] == 3 and value.size <= 3 * inputs[0].size
            case "flag":
                assert isinstance(value, bool)
            case "shape":
                assert value == inputs[0].shape
            case "third shape":
                assert value == inputs[2].shape
            case "second" | "third":
                assert value is wanted[what][0]
            case _:
                assert value is wanted[what]


# ---- mutations -------------------------------------------------------------------------------------------------------


def _half(x: Any) -> Any:
    return None if x is None else tuple(map(_half, x)) if isinstance(x, tuple) else 0.5 * x


PARAMETERS = [row for row in ROWS if row.case(row.samples[0]).params]


@pytest.mark.parametrize("row", [row for row in ROWS if row.case(row.samples[0]).differentiable], ids=lambda r: r.name)
def test_half_an_input_gradient_is_seen(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    vjp = row.cls.vjp
    monkeypatch.setattr(row.cls, "vjp", lambda self, saved, grad: _half(vjp(self, saved, grad)))
    for gate in (assert_central_differences, assert_dot_product, assert_torch):
        with pytest.raises(AssertionError):
            gate(row.case(row.samples[0]))


@pytest.mark.parametrize("row", PARAMETERS, ids=lambda r: r.name)
def test_a_lost_parameter_gradient_is_seen(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    vjp = row.cls.vjp
    for name in row.case(row.samples[0]).params:

        def lossy(self: Any, saved: Any, grad: Any, name: str = name) -> Any:
            before = self.named_parameters()[name].grd.copy()
            dx = vjp(self, saved, grad)
            self.named_parameters()[name].grd = before
            return dx

        with monkeypatch.context() as patch:
            patch.setattr(row.cls, "vjp", lossy)
            for gate in (assert_central_differences, assert_torch):
                with pytest.raises(AssertionError):
                    gate(row.case(row.samples[0]))


@pytest.mark.parametrize("row", PARAMETERS, ids=lambda r: r.name)
def test_a_frozen_layer_gets_no_gradients_and_passes_the_same_on(row: Row) -> None:
    case = row.case(row.samples[0])
    inputs = case.inputs_as("float32")
    y, saved = case.forward(inputs)
    u = case.upstream(y.shape, "float32")
    want = case.subject.vjp(saved, u)
    case.subject.zero_grad()
    for name, param in case.params.items():
        case.subject.freeze()
        got = case.subject.vjp(saved, u)
        assert not any(p.memory["grd"].numpy().any() for p in case.params.values())
        param.trainable = True
        case.subject.vjp(saved, u)
        assert [n for n, p in case.params.items() if p.memory["grd"].numpy().any()] == [name]
        case.subject.zero_grad()
        assert want is None or np.allclose(got, want, rtol=1e-6)


# ---- compiled --------------------------------------------------------------------------------------------------------

FREE = ("LayerNorm", "LayerNormNoAffine", "LayerNormAct", "RMSNorm", "Softmax", "LogSoftmax", "MinMaxNorm")
FREE += (
    "LeakyReLU",
    "ELU",
    "Softplus",
    "Symlog",
    "Symexp",
    "Clamp",
    "Scale",
    "CenterHalf",
    "Elementwise",
    "StopGrad",
    "GradGate",
)
"""Layers whose programs serve all widths."""


def _free(row: Row, case: Case, dtype: str) -> tuple[list[tuple[tuple[Any, ...], str]], dict[str, Any] | None]:
    """Shapes of inputs and parameters, free where they can be."""
    kinds = [dtype if np.issubdtype(x.dtype, np.floating) else "int32" for x in case.inputs]
    if row.cls.__name__ not in FREE:
        shapes = [tuple("b" if i == 0 and n != 1 else n for i, n in enumerate(x.shape)) for x in case.inputs]
        if row.name == "BinaryElementwise":
            shapes = [("b", *case.inputs[0].shape[1:]), case.inputs[1].shape]
            if case.inputs[0].shape == case.inputs[1].shape:
                shapes[1] = shapes[0]
        return list(zip(shapes, kinds, strict=True)), None
    shapes = [("b", "s", "n")[-x.ndim :] for x in case.inputs]
    return list(zip(shapes, kinds, strict=True)), {"weight": ("n",), "bias": ("n",)}


MORE = {
    "GroupNorm": ("rank 2",),
    "BatchNorm1D": ("sequences",),
    "BatchNorm1D, evaluation": ("sequences", "one row"),
    "BatchNorm2D": ("one image", "one pixel", "larger maps"),
    "BatchNorm2D, frozen": ("larger maps",),
    "BatchNorm2DAct, relu": ("larger maps",),
    "Embedding": ("many ids",),
    "BinaryElementwise": ("a broadcast row",),
    "BiasAdd": ("positions",),
    "Gate": ("one condition a sample",),
    "Modulate": ("one condition a sample",),
}
"""Samples that are compiled beside a row's first, because other code of the compiled path runs for them."""

DOUBLE = ("LayerNorm", "RMSNorm, eps 1", "GroupNorm", "BatchNorm1D", "BatchNorm2D, frozen", "MinMaxNorm", "Softmax")
DOUBLE += ("LogSoftmax", "Embedding", "LeakyReLU", "ELU", "Softplus", "Symlog", "Symexp", "SwiGLU", "ConvRMSNorm")
"""Rows also compiled in float64: one a kernel."""


def _compiled(row: Row) -> list[Sample]:
    if row.cls.__name__ in FREE:
        return [s for s in row.samples if row.case(s).inputs[0].ndim <= 2]
    return first_programs(row, _name, MORE.get(row.name, ()))


def _name(row: Row, sample: Sample, dtype: str = "float32") -> str:
    inputs, params = _free(row, row.case(sample), dtype)
    options = sample.args if params is None else ()
    return re.sub(r"\W+", "_", f"{row.name} {options} {inputs} {dtype}")


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    graphs = {}
    for row in ALL:
        for sample in _compiled(row):
            for dtype in ("float32", "float64") if sample is row.samples[0] and row.name in DOUBLE else ("float32",):
                name = _name(row, sample, dtype)
                if name not in graphs:
                    case = row.case(sample)
                    case.convert(dtype)
                    graphs[name] = stage(name, case.subject, *_free(row, case, dtype))
    return build(list(graphs.values()), CPU, f"{len(graphs)} programs of norms and elementwise layers")


COMPILED = [pytest.param(row, s, id=f"{row.name}, {s.label}") for row in ALL for s in _compiled(row)]


@pytest.mark.compiled
@pytest.mark.parametrize(("row", "sample"), COMPILED)
def test_non_finite_numbers_come_out_as_in_the_reference(
    row: Row, sample: Sample, programs: dict[str, Program]
) -> None:
    assert_propagates(row.case(sample), lambda case: run_case(programs[_name(row, sample)], case))


@pytest.mark.compiled
@pytest.mark.parametrize(("row", "sample"), COMPILED)
def test_compiled(row: Row, sample: Sample, programs: dict[str, Program]) -> None:
    case, program = row.case(sample), programs[_name(row, sample)]
    first = run_case(program, case)
    assert_float32(case, first, reference(case))
    case = row.case(sample)
    assert_identical(case, first, run_case(program, case))
    assert_doubled(case, first, run_case(program, row.case(sample), vjps=2))


@pytest.mark.compiled
@pytest.mark.parametrize("row", [row for row in ALL if row.name in DOUBLE], ids=lambda row: row.name)
def test_compiled_float64(row: Row, programs: dict[str, Program]) -> None:
    case = row.case(row.samples[0])
    got = run_case(programs[_name(row, row.samples[0], "float64")], case, "float64")
    assert_close(case, got, reference(row.case(row.samples[0])), 1e-12)
