"""The families of `FAMILIES` through the gates, on the reference and compiled (one program set for all of them)."""

import re
from typing import Any

import numpy as np
import pytest

from noeira.runtime.programs import Program, build
from tests import (
    catalogue_combinators,
    catalogue_convnets,
    catalogue_linear,
    catalogue_loss,
    catalogue_models,
    catalogue_random,
    catalogue_recurrence,
    catalogue_rl,
    catalogue_tokens,
)
from tests.catalogue import Mistake, Row, Sample
from tests.compare import (
    GATES,
    Case,
    assert_accumulates,
    assert_doubled,
    assert_float32,
    assert_identical,
    assert_propagates,
    assert_torch,
    reference,
)
from tests.compiled import CPU, first_programs, run, run_case, stage

FAMILIES = (
    catalogue_linear,
    catalogue_loss,
    catalogue_models,
    catalogue_combinators,
    catalogue_convnets,
    catalogue_random,
    catalogue_recurrence,
    catalogue_rl,
    catalogue_tokens,
)
ROWS = [row for family in FAMILIES for row in family.ROWS]
GATED = [row for family in FAMILIES for row in getattr(family, "GATED", ())]

ELSEWHERE = {
    "MSELoss, half", "SmoothL1Loss, beta", "HuberLoss, delta", "GaussianNLLLoss, log", "KLDivLoss, log",
    "BCEWithLogitsLoss, large logits", "TwoHotLoss, linear", "CrossEntropyLoss, sum", "CrossEntropyLoss, none",
    "MultiHeadAttention, causal", "TransformerFFN, no bias", "TransformerBlock, exact", "GPT, tied", "GPT, no bias",
    "Parallel, channels", "ComputeGraph, external nodes", "NoisyLinear, repeated", "RSample, evaluation",
    "GaussianVAE, evaluation", "HashDropout, off", "GRUSeq, no bias", "LSTMCell, no bias", "BlockLinear, no bias",
    "DynamicsSpaceAttention, cloning", "DynamicsSpaceAttention, no mask", "MultiHeadCrossAttention, another width",
    "DecoderBlock, causal", "LearnedQueries, integers", "MAEReplacer, evaluation", "ResNet, small images",
    "ConditionalTransformerBlock, causal, another width", "RepeatConditional, of transformer blocks",
    "Repeat, of replacers",
}  # fmt: skip
"""Rows that are not compiled: they differ from one that is in a constant, or are made of rows that are (a program costs
seconds; ResNets are compiled by the tests of the examples)."""

MORE = {
    "TiedLinear": ("primes",),
    "MSELoss": ("rank 4", "sum", "mean over samples", "none", "mask", "mask, sum"),
    "SequenceCrossEntropyLoss": ("none", "mask"),
    "SoftCrossEntropyLoss": ("mask",),
    "PositionEmbedding": ("fewer tokens",),
    "Add": ("broadcast", "three"),
    "Divide": ("broadcast",),
    "GRUSeq": ("no state", "wider than a vector"),
    "LSTMSeq": ("no state", "wider than a vector"),
    "Concat": ("tokens",),
    "GatherCols": ("several, some twice",),
    "Reduce, sum": ("an axis of three", "many"),
    "ReduceMax": ("an axis of three",),
    "MSEPerSample": ("many",),
    "BlockLinear": ("primes",),
    "MultiHeadCrossAttention": ("padded memory",),
    "DecoderBlock": ("padded memory",),
    "LearnedTokens": ("last",),
}
"""Samples that are compiled beside a row's first, because other code of the compiled path runs for them."""


def _shapes(case: Case) -> list[tuple[tuple[Any, ...], str]]:
    """The inputs with a free batch dimension."""
    return [
        (("b", *x.shape[1:]), "float32" if np.issubdtype(x.dtype, np.floating) else x.dtype.name) for x in case.inputs
    ]


def _name(row: Row, sample: Sample) -> str:
    """One program serves all samples of a row that differ in their batch only."""
    return re.sub(r"\W+", "_", f"{row.name} {sample.args} {_shapes(row.case(sample))}")


def _cases(pairs: list[tuple[Row, Sample]]) -> Any:
    return pytest.mark.parametrize(
        ("row", "sample"), [pytest.param(row, sample, id=f"{row.name}, {sample.label}") for row, sample in pairs]
    )


COMPILED = [
    (row, sample)
    for row in [*ROWS, *GATED]
    if row.name not in ELSEWHERE
    for sample in first_programs(row, _name, MORE.get(row.name, ()))
]
CASES = _cases(COMPILED)
MISTAKES = [pytest.param(m, id=f"{row.name}, {m.label}") for row in [*ROWS, *GATED] for m in row.mistakes]


@pytest.mark.parametrize("gate", [*GATES, assert_accumulates], ids=lambda gate: gate.__name__.removeprefix("assert_"))
@_cases([(row, sample) for row in ROWS for sample in row.samples])
def test_gate(row: Row, sample: Sample, gate: Any) -> None:
    gate(row.case(sample))


@_cases([(row, sample) for row in GATED for sample in row.samples])
def test_agrees_with_pytorch(row: Row, sample: Sample) -> None:
    assert_torch(row.case(sample))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_refused_in_words(mistake: Mistake) -> None:
    with pytest.raises(mistake.error, match=mistake.match):
        mistake.call()


@pytest.fixture(scope="session")
def programs() -> dict[str, Program]:
    """All programs of all families: one compilation."""
    graphs = {}
    for row, sample in COMPILED:
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


@pytest.mark.compiled
@pytest.mark.parametrize("wrong", [-1, 5, 2**31 - 1])
def test_an_id_out_of_range_picks_nan_and_reads_nothing_else(wrong: int, programs: dict[str, Program]) -> None:
    ids = np.array([3, wrong, 0], np.int32)
    rng = np.random.default_rng(5)
    for name, shape in (("GatherActionSlice", (3, 5, 11)), ("GatherCols", (3, 5))):
        row = next(row for row in ROWS if row.name == name)
        x = rng.standard_normal(shape).astype(np.float32)
        index = ids if len(shape) == 3 else ids[:, None]
        u = np.ones((3, shape[-1]) if len(shape) == 3 else (3, 1), np.float32)
        y, dx = run(programs[_name(row, row.samples[0])], {"x0": x, "x1": index, "u": u})
        assert np.isnan(y[1]).all() and not dx[1].any()
        assert np.array_equal(y[0], x[0, 3] if len(shape) == 3 else x[0, 3:4])
        assert np.array_equal(y[2], x[2, 0] if len(shape) == 3 else x[2, :1])


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["SequenceCrossEntropyLoss", "SoftCrossEntropyLoss"])
def test_rows_that_do_not_count_add_nothing_whatever_is_in_them(name: str, programs: dict[str, Program]) -> None:
    row = next(row for row in ROWS if row.name == name)
    for label in ("mask", *(["none"] if name == "SequenceCrossEntropyLoss" else [])):  # "none" has ignored labels
        sample = next(sample for sample in row.samples if sample.label == label)
        case, program = row.case(sample), programs[_name(row, sample)]
        hidden = ~case.inputs[2] if label == "mask" else case.inputs[1] == -100
        want = run_case(program, case)
        case.inputs = (np.where(hidden[..., None], np.float32(np.nan), case.inputs[0]), *case.inputs[1:])
        got = run_case(program, case)
        assert hidden.any() and not got["dx0"][hidden].any() and not np.signbit(got["dx0"][hidden]).any()
        assert_identical(case, got, want)
        if label == "none":
            assert not got["y"][hidden].any() and not np.signbit(got["y"][hidden]).any()


@pytest.mark.compiled
def test_a_label_that_is_no_class_makes_its_own_loss_nan(programs: dict[str, Program]) -> None:
    row = next(row for row in ROWS if row.name == "SequenceCrossEntropyLoss")
    sample = next(sample for sample in row.samples if sample.label == "none")
    labels = np.array([[0, -1, 4, -100], [5, 1, 2**31 - 1, 2]], np.int32)
    arrays = {"x0": np.zeros((2, 4, 5), np.float32), "x1": labels, "u": np.ones((2, 4), np.float32)}
    y = run(programs[_name(row, sample)], arrays)[0]
    assert np.array_equal(np.isnan(y), (labels != -100) & ((labels < 0) | (labels > 4)))
