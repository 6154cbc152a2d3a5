"""The families of `FAMILIES` through the gates, on the reference and compiled (one program set for all of them)."""

import re
from typing import Any

import numpy as np
import pytest

from noeira.runtime.programs import Program, build
from tests import catalogue_linear, catalogue_models
from tests.catalogue import Mistake, Row, Sample
from tests.compare import (
    GATES,
    Case,
    assert_accumulates,
    assert_close,
    assert_doubled,
    assert_float32,
    assert_identical,
    assert_propagates,
    reference,
)
from tests.compiled import CPU, run_case, stage

FAMILIES = (catalogue_linear, catalogue_models)
ROWS = [row for family in FAMILIES for row in family.ROWS]
CASES = pytest.mark.parametrize(
    ("row", "sample"), [pytest.param(row, s, id=f"{row.name}, {s.label}") for row in ROWS for s in row.samples]
)
MISTAKES = [pytest.param(m, id=f"{row.name}, {m.label}") for row in ROWS for m in row.mistakes]


@pytest.mark.parametrize("gate", [*GATES, assert_accumulates], ids=lambda gate: gate.__name__.removeprefix("assert_"))
@CASES
def test_gate(row: Row, sample: Sample, gate: Any) -> None:
    gate(row.case(sample))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_refused_in_words(mistake: Mistake) -> None:
    with pytest.raises(mistake.error, match=mistake.match):
        mistake.call()


def _shapes(case: Case) -> list[tuple[tuple[Any, ...], str]]:
    """The inputs with a free batch dimension."""
    return [
        (("b", *x.shape[1:]), "float32" if np.issubdtype(x.dtype, np.floating) else x.dtype.name) for x in case.inputs
    ]


def _name(row: Row, sample: Sample) -> str:
    """One program serves all samples of a row that differ in their batch only."""
    return re.sub(r"\W+", "_", f"{row.name} {sample.args} {_shapes(row.case(sample))}")


@pytest.fixture(scope="session")
def programs() -> dict[str, Program]:
    """All programs of all families: one compilation."""
    graphs = {}
    for row in ROWS:
        for sample in row.samples:
            case, name = row.case(sample), _name(row, sample)
            if name not in graphs:
                graphs[name] = stage(name, case.subject, _shapes(case))
    return build(list(graphs.values()), CPU, f"{len(graphs)} programs of modules made of modules")


@pytest.mark.compiled
@CASES
def test_compiled_float32_is_as_good_as_pytorch(row: Row, sample: Sample, programs: dict[str, Program]) -> None:
    case, program = row.case(sample), programs[_name(row, sample)]
    first = run_case(program, case)
    assert_float32(case, first, reference(case))
    assert_identical(case, first, run_case(program, case))
    assert_doubled(case, first, run_case(program, case, vjps=2))


@pytest.mark.compiled
@CASES
def test_non_finite_numbers_come_out_as_in_the_reference(
    row: Row, sample: Sample, programs: dict[str, Program]
) -> None:
    assert_propagates(row.case(sample), lambda case: run_case(programs[_name(row, sample)], case))


LAYOUTS = {
    "every second element": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "Fortran order": np.asfortranarray,
    "negative stride": lambda x: x[..., ::-1].copy()[..., ::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_non_contiguous_inputs_change_nothing(row: Row, layout: str) -> None:
    case = row.case(row.samples[0])
    want = reference(case)
    plain = case.inputs_as
    case.inputs_as = lambda dtype: [LAYOUTS[layout](x) for x in plain(dtype)]  # type: ignore[method-assign]
    assert_close(case, reference(case), want, 1e-14)
