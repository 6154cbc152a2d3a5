"""The attention family through the gates, on the reference and compiled (one program set)."""

import re
from typing import Any

import numpy as np
import pytest

from noeira.runtime.programs import Program, build
from tests.catalogue import Mistake, Row, Sample
from tests.catalogue_attention import ROWS
from tests.compare import (
    GATES,
    Case,
    assert_accumulates,
    assert_close,
    assert_float32,
    assert_identical,
    assert_propagates,
    reference,
)
from tests.compiled import CPU, first_programs, run_case, stage

CASES = pytest.mark.parametrize(
    ("row", "sample"), [pytest.param(row, s, id=f"{row.name}, {s.label}") for row in ROWS for s in row.samples]
)
MISTAKES = [pytest.param(m, id=f"{row.name}, {m.label}") for row in ROWS for m in row.mistakes]


@pytest.mark.parametrize("gate", [*GATES, assert_accumulates], ids=lambda gate: gate.__name__.removeprefix("assert_"))
@CASES
def test_gate(row: Row, sample: Sample, gate: Any) -> None:
    gate(row.case(sample))


@pytest.mark.parametrize("mistake", list(dict.fromkeys(MISTAKES)))
def test_mistake_is_refused_in_words(mistake: Mistake) -> None:
    with pytest.raises(mistake.error, match=mistake.match):
        mistake.call()


def _free(case: Case) -> list[tuple[tuple[Any, ...], str]]:
    """The inputs with free dimensions, but for features and heads, and for tokens where a mask fixes their number."""
    fixed = getattr(case.subject, "mask", None) is not None
    lengths = {n: name for name, n in zip("ts", {x.shape[1]: 0 for x in case.inputs if x.ndim < 4}, strict=False)}
    found = []
    for x in case.inputs:
        axis = 1 if x.ndim < 4 else 2
        shape: list[Any] = ["b", *x.shape[1:]]
        shape[axis] = x.shape[axis] if fixed else lengths.get(x.shape[axis], "s")
        found.append((tuple(shape), "bool" if x.dtype == bool else "float32"))
    return found


def _name(row: Row, sample: Sample) -> str:
    """One program serves all samples of a row that differ in free dimensions only."""
    options = [arg for arg in sample.args if not isinstance(arg, np.ndarray)]
    return re.sub(r"\W+", "_", f"{row.name} {options} {_free(row.case(sample))}")


MORE = {
    "ScaledDotProductAttention": ("beyond one block",),
    "ScaledDotProductAttention, causal": ("beyond one block",),
    "ScaledDotProductAttention, dropout": ("beyond one block",),
    "MaskedAttention, numbers": ("101 tokens",),
    "MaskedAttention, bool": ("101 tokens",),
    "CrossAttention": ("beyond one block",),
    "RoPE": ("token-major heads", "head-major"),
    "RoPE, interleaved": ("token-major heads",),
}
"""Samples that are compiled beside a row's first, because other code of the compiled path runs for them."""

PAIRS = [(row, sample) for row in ROWS for sample in first_programs(row, _name, MORE.get(row.name, ()))]
COMPILED = pytest.mark.parametrize(
    ("row", "sample"), [pytest.param(row, sample, id=f"{row.name}, {sample.label}") for row, sample in PAIRS]
)


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    graphs = []
    cases = {_name(row, sample): row.case(sample) for row, sample in PAIRS}
    for name, case in cases.items():
        graphs.append(stage(name, case.subject, _free(case)))
    for row in ROWS[:3]:
        case = row.case(row.samples[0])
        case.convert("float64")
        inputs = [(shape, "float64") for shape, _ in _free(case)]
        graphs.append(stage(_name(row, row.samples[0]) + "_64", case.subject, inputs))
    return build(graphs, CPU, f"{len(graphs)} programs of attention")


@pytest.mark.compiled
@COMPILED
def test_non_finite_numbers_come_out_as_in_the_reference(
    row: Row, sample: Sample, programs: dict[str, Program]
) -> None:
    assert_propagates(row.case(sample), lambda case: run_case(programs[_name(row, sample)], case))


@pytest.mark.compiled
@COMPILED
def test_compiled(row: Row, sample: Sample, programs: dict[str, Program]) -> None:
    case, program = row.case(sample), programs[_name(row, sample)]
    first = run_case(program, case)
    assert_float32(case, first, reference(case))
    assert_identical(case, first, run_case(program, case))


@pytest.mark.compiled
@pytest.mark.parametrize("row", ROWS[:3], ids=lambda row: row.name)
def test_compiled_float64(row: Row, programs: dict[str, Program]) -> None:
    case = row.case(row.samples[0])
    program = programs[_name(row, row.samples[0]) + "_64"]
    assert_close(case, run_case(program, case, "float64"), reference(case), 1e-12)


def test_a_dropped_term_is_seen() -> None:
    row = ROWS[0]
    case = row.case(row.samples[0])
    right = case.subject.vjp
    case.subject.vjp = lambda saved, grad: right(saved, grad) * np.float32(0.5)  # type: ignore[method-assign]
    for gate in GATES[:3]:
        with pytest.raises(AssertionError):
            gate(case)
