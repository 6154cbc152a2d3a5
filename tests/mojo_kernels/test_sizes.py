"""Kernels on the sizes of `SIZES`, against float64 and float32 PyTorch: one program set."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from noeira.runtime.programs import Program, build
from tests.catalogue import Sample
from tests.compare import Case, assert_float32, assert_identical, reference
from tests.compiled import CPU, run_case, stage
from tests.mojo_kernels.sizes import Sized, sized

SIZED = list(sized())


def _shapes(size: Sized, case: Case) -> list[tuple[tuple[Any, ...], str]]:
    free = size.inputs
    if isinstance(free, int):
        free = tuple((*"bs"[:free], *x.shape[free:]) for x in case.inputs)
    kinds = ["float32" if np.issubdtype(x.dtype, np.floating) else x.dtype.name for x in case.inputs]
    return list(zip(free, kinds, strict=True))


def _name(size: Sized, sample: Sample) -> str:
    """One program serves all samples that differ in free dimensions only."""
    fixed = "" if isinstance(size.inputs, tuple) else f"{sample.args} {_shapes(size, size.row.case(sample))}"
    return re.sub(r"\W+", "_", f"{size.row.name} {fixed}")


PROGRAMS, OF_CONVOLUTION = 2, 6
"""How many programs a row has here; `test_safety` runs all sizes, which are inputs of its programs."""


def _compiled() -> Iterator[tuple[Sized, Sample]]:
    """The samples of each row's first programs."""
    for size in SIZED:
        names = dict.fromkeys(_name(size, sample) for sample in size.row.samples)
        chosen = list(names)[: OF_CONVOLUTION if size.row.name == "Conv2D" else PROGRAMS]
        yield from ((size, sample) for sample in size.row.samples if _name(size, sample) in chosen)


COMPILED = list(_compiled())


@pytest.fixture(scope="session")
def programs() -> dict[str, Program]:
    graphs = {}
    for size, sample in COMPILED:
        name = _name(size, sample)
        if name not in graphs:
            case = size.row.case(sample)
            graphs[name] = stage(name, case.subject, _shapes(size, case), dict(size.params) or None)
    return build(list(graphs.values()), CPU, f"{len(graphs)} programs on sizes around those of tiles")


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("size", "sample"), [pytest.param(size, sample, id=f"{size.row.name}, {sample.label}") for size, sample in COMPILED]
)
def test_kernels_are_as_good_as_pytorch_on_sizes_around_those_of_tiles(
    size: Sized, sample: Sample, programs: dict[str, Program]
) -> None:
    case, program = size.row.case(sample), programs[_name(size, sample)]
    first = run_case(program, case)
    assert_float32(case, first, reference(case))
    assert_identical(case, first, run_case(program, case))
