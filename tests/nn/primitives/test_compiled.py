"""Every row of the catalogue, compiled, against the float64 reference and float32 PyTorch."""

import re

import pytest

from noeira.runtime.programs import Program
from tests import catalogue
from tests.catalogue import Row, Sample
from tests.compare import (
    Case,
    assert_close,
    assert_doubled,
    assert_float32,
    assert_identical,
    assert_propagates,
    reference,
)
from tests.compiled import DOUBLE, MUTANTS, catalogue_programs, compiled_cases, program_name, run_case

pytestmark = pytest.mark.compiled

CASES = pytest.mark.parametrize(("row", "sample"), compiled_cases())


@pytest.fixture(scope="session")
def programs() -> dict[str, Program]:
    """All programs of the catalogue: one compilation."""
    return catalogue_programs()


@CASES
def test_float32_is_as_good_as_pytorch(row: Row, sample: Sample, programs: dict[str, Program]) -> None:
    case = row.case(sample)
    assert_float32(case, run_case(programs[program_name(row, sample, "float32")], case), reference(case))


@CASES
def test_a_second_run_is_bit_identical(row: Row, sample: Sample, programs: dict[str, Program]) -> None:
    case, program = row.case(sample), programs[program_name(row, sample, "float32")]
    assert_identical(case, run_case(program, case), run_case(program, case))


@CASES
def test_gradients_accumulate(row: Row, sample: Sample, programs: dict[str, Program]) -> None:
    case, program = row.case(sample), programs[program_name(row, sample, "float32")]
    assert_doubled(case, run_case(program, case), run_case(program, case, vjps=2))


@CASES
def test_non_finite_numbers_come_out_as_in_the_reference(
    row: Row, sample: Sample, programs: dict[str, Program]
) -> None:
    program = programs[program_name(row, sample, "float32")]
    assert_propagates(row.case(sample), lambda case: run_case(program, case))


@pytest.mark.parametrize("row", [row for row in catalogue.ROWS if row.name in DOUBLE], ids=lambda row: row.name)
def test_float64_agrees_with_the_reference(row: Row, programs: dict[str, Program]) -> None:
    case = row.case(row.samples[1])
    program = programs[program_name(row, row.samples[1], "float64")]
    assert_close(case, run_case(program, case, "float64"), reference(case), 1e-12)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_faulty_program_is_seen(name: str, programs: dict[str, Program]) -> None:
    row, mutant = MUTANTS[name]
    right = row.case(row.samples[1])
    wrong = Case(right.name, mutant(*row.samples[1].args), right.inputs, right.twin)
    with pytest.raises(AssertionError, match=re.escape(right.name)):
        assert_float32(wrong, run_case(programs[name], wrong), reference(right))
