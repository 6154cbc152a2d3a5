"""The gates must be able to fail: each mutation here is a plausible fault, and every gate it concerns sees it."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from noeira import nn
from noeira.ops import activation_grad
from tests import (
    catalogue,
    catalogue_combinators,
    catalogue_loss,
    catalogue_random,
    catalogue_recurrence,
    catalogue_rl,
    catalogue_tokens,
)
from tests.compare import (
    Case,
    assert_accumulates,
    assert_central_differences,
    assert_dot_product,
    assert_doubled,
    assert_float32,
    assert_identical,
    assert_torch,
    reference,
)

Vjp = Callable[..., Any]
Mutator = Callable[[Vjp], Vjp]
DERIVATIVE = (assert_central_differences, assert_dot_product, assert_torch)
"""The gates that check derivatives."""


@dataclass(frozen=True)
class Mutation:
    """A fault in the vjp of the class of row `row`; `gates` must fail on sample number `sample`."""

    row: str
    fault: str
    mutate: Mutator
    gates: tuple[Callable[[Case], None], ...] = DERIVATIVE
    sample: int = 0


def input_grad(change: Callable[[np.ndarray], np.ndarray]) -> Mutator:
    """The input gradient changed."""
    return lambda vjp: lambda self, saved, grad: change(vjp(self, saved, grad))


def input_grads(change: Callable[[np.ndarray], np.ndarray]) -> Mutator:
    """Those of all inputs that have one changed."""
    return lambda vjp: lambda self, saved, grad: tuple(None if g is None else change(g) for g in vjp(self, saved, grad))


def param_grad(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Mutator:
    """What one vjp adds to a parameter's gradient changed."""

    def mutate(vjp: Vjp) -> Vjp:
        def run(self: Any, saved: Any, grad: Any) -> Any:
            param = self.named_parameters()[name]
            before = param.grd.copy()
            dx = vjp(self, saved, grad)
            param.grd = before + change(param.grd - before)
            return dx

        return run

    return mutate


def overwritten(name: str) -> Mutator:
    """The gradient set instead of added to."""

    def mutate(vjp: Vjp) -> Vjp:
        def run(self: Any, saved: Any, grad: Any) -> Any:
            self.named_parameters()[name].grd = np.zeros(self.named_parameters()[name].shape)
            return vjp(self, saved, grad)

        return run

    return mutate


def saved_as(change: Callable[[Any], Any]) -> Mutator:
    """The vjp gets something else than what forward saved."""
    return lambda vjp: lambda self, saved, grad: vjp(self, change(saved), grad)


def instead(rule: Callable[[Any, Any, Any], Any]) -> Mutator:
    """Another vjp altogether: rule(self, saved, grad)."""
    return lambda vjp: rule


def without(option: str, neutral: Any) -> Mutator:
    """The vjp of a loss forgets one of its options."""

    def mutate(vjp: Vjp) -> Vjp:
        def run(self: Any, saved: Any, grad: Any = 1.0) -> Any:
            kept = getattr(self, option)
            setattr(self, option, neutral)
            try:
                return vjp(self, saved, grad)
            finally:
                setattr(self, option, kept)

        return run

    return mutate


def skip_module(index: int) -> Mutator:
    """A chain that forgets one module on the way back; only where widths allow it."""

    def rule(self: Any, saved: Any, grad: Any) -> Any:
        pairs = list(zip(self.layers, saved, strict=True))
        for i in range(len(pairs) - 1, -1, -1):
            if i != index:
                grad = pairs[i][0].vjp(pairs[i][1], grad)
        return grad

    return instead(rule)


def half(x: np.ndarray) -> np.ndarray:
    return 0.5 * x


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _softmax_only(self: Any, saved: Any, grad: Any = 1.0) -> Any:
    """Cross-entropy whose vjp lacks the target term."""
    logits, _, statistics, weight, _ = saved
    return (np.exp(logits - statistics.sum(axis=-1, keepdims=True)) * grad / weight).astype(logits.dtype)


def _flatten_swapped(self: Any, shape: Any, grad: Any) -> Any:
    """Flatten's vjp with the axes in the wrong order."""
    return grad.reshape(shape[0], *shape[:0:-1]).T.reshape(shape)


def _cut(sizes: Any, grad: np.ndarray) -> Any:
    return tuple(np.split(grad, np.cumsum(sizes)[:-1], axis=-1))


def _gathered_once(self: Any, saved: Any, grad: Any) -> Any:
    """GatherCols' vjp that sets where it should add."""
    ids, count = saved
    dx = np.zeros((*ids.shape[:-1], count), grad.dtype)
    np.put_along_axis(dx, ids, grad, axis=-1)
    return dx, None


def _uncentred(grad: np.ndarray) -> np.ndarray:
    return np.concatenate([grad.sum(-1, keepdims=True), grad], -1)


def _gru_param(name: str, other: str) -> Mutator:
    """One parameter's gradient added to another as well, in its place."""

    def mutate(vjp: Any) -> Any:
        def wrong(self: Any, saved: Any, grad: Any) -> Any:
            result = vjp(self, saved, grad)
            getattr(self, name).grd[...] = getattr(self, other).grd
            return result

        return wrong

    return mutate


def _first_half(grad: np.ndarray) -> np.ndarray:
    return np.concatenate([grad[..., : grad.shape[-1] // 2], 0 * grad[..., grad.shape[-1] // 2 :]], -1)


def first_grad_only(vjp: Any) -> Any:
    """The first input's gradient, zeros for the others."""
    return lambda self, saved, grad: tuple(g if i == 0 else 0 * g for i, g in enumerate(vjp(self, saved, grad)))


def _of_one_sample(self: Any, x: Any, grad: Any) -> Any:
    """LearnedQueries' vjp without the sum over the batch."""
    self.weight.accumulate(grad[0])
    return 0 * x


def _from_the_end(self: Any, shape: Any, grad: Any) -> Any:
    """LearnedTokens' vjp that looks for tokens put first behind the others."""
    self.weight.accumulate(grad[:, shape[1] :].sum(axis=0))
    return grad[:, : shape[1]]


def _forgetful(vjp: Vjp) -> Callable[[Any, Any, Any], Any]:
    """A block that does not train what made its memory."""

    def rule(self: Any, saved: Any, grad: Any) -> Any:
        dx, dm = vjp(self, saved, grad)
        return dx, 0 * dm

    return rule


def _unwired(kept: Any, name: str) -> Any:
    """A graph's saved part in which one node sends no gradients back."""
    wiring, values, unread = kept
    steps = tuple(
        dataclasses.replace(step, sources=(None,) * len(step.sources)) if step.name == name else step
        for step in wiring.steps
    )
    return dataclasses.replace(wiring, steps=steps), values, unread


def _last_condition(self: Any, saved: Any, grad: Any) -> Any:
    """A conditional stack that does not add up the gradients of its condition."""
    dc = None
    for module, kept in zip(reversed(self.layers), reversed(saved), strict=True):
        grad, dc = module.vjp(kept, grad)
    return grad, dc


def _without_last_branch(self: Any, saved: Any, grad: Any) -> Any:
    """Branches side by side of which the last sends no gradient back."""
    first, *rest = self._grads(saved, grad)[:-1]
    return sum(rest, first)


SOFT = "CrossEntropyLoss, probabilities, smoothing, class weights"

MUTATIONS = (
    Mutation("Linear", "dx halved", input_grad(half)),
    Mutation("Linear", "dx of another sign", input_grad(np.negative)),
    Mutation("Linear", "dW lost", param_grad("weight", lambda g: 0 * g)),
    Mutation("Linear", "dW halved", param_grad("weight", half)),
    Mutation("Linear", "dW one part in a million off", param_grad("weight", lambda g: g * (1 + 5e-6))),
    Mutation("Linear", "dW from the next row", saved_as(lambda x: np.roll(x, 1, axis=0))),
    Mutation("Linear", "db lost", param_grad("bias", lambda g: 0 * g)),
    Mutation("Linear", "db counts the first row twice", param_grad("bias", lambda g: g + g[0])),
    Mutation("Linear", "db set, not added", overwritten("bias"), (assert_accumulates,)),
    Mutation("Linear, no bias", "dW set, not added", overwritten("weight"), (assert_accumulates,)),
    Mutation("Linear, no bias", "dW transposed", param_grad("weight", lambda g: g.T.reshape(g.shape))),
    Mutation("LinearAct relu", "mask shifted", saved_as(lambda kept: (kept[0], np.roll(kept[1], 1, axis=-1)))),
    Mutation("LinearAct tanh", "derivative at the wrong point", saved_as(lambda kept: (kept[0], kept[1] * 0.99))),
    Mutation("LinearAct gelu", "y for z", saved_as(lambda kept: (kept[0], kept[1] * sigmoid(1.7 * kept[1])))),
    Mutation("LinearAct mish", "db halved", param_grad("bias", half)),
    Mutation("LinearSwish", "dW of another sign", param_grad("weight", np.negative)),
    Mutation("ReLU", "no mask", instead(lambda self, y, grad: grad)),
    Mutation("ReLU", "mask shifted", saved_as(lambda y: np.roll(y, 1, axis=-1))),
    Mutation("Tanh", "1 - y", instead(lambda self, y, grad: grad * (1 - y))),
    Mutation("Sigmoid", "a factor lost", instead(lambda self, y, grad: grad * y)),
    Mutation("SiLU", "a term lost", instead(lambda self, x, grad: grad * sigmoid(x))),
    Mutation("Mish", "a term lost", instead(lambda self, x, grad: grad * np.tanh(np.logaddexp(0, x)))),
    Mutation("GELU", "the other GELU", instead(lambda self, x, grad: activation_grad(grad, x, "gelu_tanh"))),
    Mutation("GELU, tanh", "the other GELU", instead(lambda self, x, grad: activation_grad(grad, x, "gelu"))),
    Mutation("Flatten", "axes in the wrong order", instead(_flatten_swapped)),
    Mutation("Dropout", "no mask", instead(lambda self, saved, grad: grad)),
    Mutation("Dropout", "mask of another stream", saved_as(lambda key: key + np.array([0, 0, 1]))),
    Mutation("Dropout", "mask of the next step", saved_as(lambda key: key + np.array([0, 1, 0]))),
    Mutation("Dropout", "not scaled", input_grad(half)),
    Mutation("Sequential", "a module forgotten", skip_module(1), sample=7),
    Mutation("CrossEntropyLoss, labels", "target term lost", instead(_softmax_only)),
    Mutation("CrossEntropyLoss, labels", "not divided by the rows", input_grad(lambda g: g * len(g))),
    Mutation("CrossEntropyLoss, labels", "of another sign", input_grad(np.negative)),
    Mutation("CrossEntropyLoss, ignored rows", "on the wrong rows", input_grad(lambda g: np.roll(g, 1, axis=0))),
    Mutation("CrossEntropyLoss, smoothing", "smoothing forgotten", without("label_smoothing", 0.0)),
    Mutation("CrossEntropyLoss, class weights", "weights forgotten", without("class_weight", None)),
    Mutation(SOFT, "weights forgotten", without("class_weight", None)),
    Mutation("CrossEntropyLoss, probabilities", "halved", input_grad(half)),
    Mutation("Slice", "one place off", input_grad(lambda g: np.roll(g, 1, axis=-1))),
    Mutation("Concat", "in the wrong order", instead(lambda self, sizes, grad: _cut(sizes, np.flip(grad, -1)))),
    Mutation("GatherCols", "a column that is named twice counts once", instead(_gathered_once), sample=1),
    Mutation("GatherActionSlice", "to the next action", input_grads(lambda g: np.roll(g, 1, axis=-2))),
    Mutation("Reduce, mean", "not divided", input_grad(lambda g: 5 * g)),
    Mutation("ReduceMax", "to the place behind", input_grad(lambda g: np.roll(g, 1, axis=-1))),
    Mutation("PairwiseDot", "halved", input_grads(half)),
    Mutation("MSEPerSample", "a factor 2 lost", input_grads(half)),
    Mutation("L1MaskedPerSample", "of another sign", input_grads(np.negative)),
    Mutation("DuelingHead", "not centred", instead(lambda self, saved, grad: _uncentred(grad))),
    Mutation("BlockLinear", "blocks exchanged", param_grad("weight", lambda g: g[::-1])),
    Mutation("BlockLinear", "db lost", param_grad("bias", lambda g: 0 * g)),
    Mutation("NoisyLinear", "noise of the next step", saved_as(lambda kept: (kept[0], kept[1] + np.array([0, 1, 0])))),
    Mutation("NoisyLinear", "widths not trained", param_grad("weight_sigma", lambda g: 0 * g)),
    Mutation("NoisyLinear", "bias widths lose the noise", param_grad("bias_sigma", np.abs)),
    Mutation("RSample", "noise of the next step", saved_as(lambda kept: (kept[0], kept[1] + np.array([0, 1, 0])))),
    Mutation("RSample", "greedy gradient", saved_as(lambda kept: (kept[0], None))),
    Mutation("GaussianVAE", "no gradient through the deviation", saved_as(lambda kept: (kept[0], None))),
    Mutation("SIGReg", "other projections", saved_as(lambda kept: (kept[0], kept[1] + np.array([0, 1, 0])))),
    Mutation("SIGReg", "of another sign", input_grad(np.negative)),
    Mutation("GRUSeq", "the recurrent bias of n without its gate", _gru_param("bias_hh", "bias_ih")),
    Mutation("GRUSeq", "the initial state's gradient lost", first_grad_only),
    Mutation("LSTMSeq", "recurrent weights halved", param_grad("weight_hh", half)),
    Mutation("LSTMCell", "the state saved is another", saved_as(lambda kept: (*kept[:3], 0 * kept[3]))),
    Mutation("MSELoss", "a factor 2 lost", input_grad(half)),
    Mutation("HuberLoss", "not limited", instead(lambda self, saved, grad: (saved[0] - saved[1]) * grad / saved[3])),
    Mutation("BCEWithLogitsLoss, weights", "positives not weighed", without("pos_weight", None)),
    Mutation("GaussianNLLLoss, log", "no gradient of the variance", input_grad(_first_half)),
    Mutation("KLDivLoss", "of another sign", input_grad(np.negative)),
    Mutation("TwoHotLoss", "one bin off", saved_as(lambda kept: (kept[0], kept[1] + 1, *kept[2:]))),
    Mutation("SequenceCrossEntropyLoss", "halved", input_grad(half)),
    Mutation("HashDropout", "mask of the next step", saved_as(lambda key: key + np.array([0, 1, 0]))),
    Mutation("SpaceTimeTranspose", "not turned", instead(lambda self, saved, grad: grad.reshape(2, 3, 5, 4))),
    Mutation("LearnedQueries", "dQ halved", param_grad("weight", half)),
    Mutation("LearnedQueries", "of one sample", instead(_of_one_sample)),
    Mutation("LearnedTokens", "from the wrong end", instead(_from_the_end)),
    Mutation("LearnedTokens", "dT lost", param_grad("weight", lambda g: 0 * g)),
    Mutation("BroadcastTokens", "a mean for the sum", input_grad(lambda g: g / 3)),
    Mutation("MAEReplacer", "what was kept for what was dropped", saved_as(np.logical_not)),
    Mutation("MAEReplacer", "decisions of the next frame", saved_as(lambda dropped: np.roll(dropped, 1, axis=0))),
    Mutation("MAEReplacer", "dm of another sign", param_grad("mask_token", np.negative)),
    Mutation("MultiHeadCrossAttention", "halved", input_grads(half)),
    Mutation("DecoderBlock", "the memory's gradient lost", instead(_forgetful(nn.DecoderBlock.vjp))),
    Mutation("ConditionalTransformerBlock", "halved", input_grads(half)),
    Mutation("ConditionalTransformerBlock", "shift for scale", param_grad("modulation.bias", lambda g: np.roll(g, 6))),
    Mutation("TimeAttentionLatents", "tokens exchanged", input_grad(lambda g: np.roll(g, 1, axis=2))),
    Mutation("TimeAttentionLatents", "frames exchanged", input_grad(lambda g: np.roll(g, 1, axis=1))),
    Mutation("Add", "the first input's gradient doubled", instead(lambda self, saved, grad: (2 * grad, grad))),
    Mutation("Subtract", "no sign", instead(lambda self, saved, grad: (grad, grad))),
    Mutation("Multiply", "factors exchanged", saved_as(lambda kept: kept[::-1])),
    Mutation("Divide", "of another sign", instead(lambda self, kept, grad: (grad / kept[1], grad * kept[2] / kept[1]))),
    Mutation("ComputeGraph", "one reader's gradient lost", saved_as(lambda kept: _unwired(kept, "product"))),
    Mutation("ComputeGraph", "a use of a shared layer lost", saved_as(lambda kept: _unwired(kept, "twice"))),
    Mutation("RepeatConditional", "only the last module's dc", instead(_last_condition)),
    Mutation("Parallel", "a branch forgotten", instead(_without_last_branch)),
    Mutation("BranchConcat", "halved", input_grads(half)),
    Mutation("SkipConcat", "no skip", instead(lambda self, saved, grad: self.module.vjp(saved[0], grad[..., 5:]))),
)

FAMILIES = (
    catalogue,
    catalogue_combinators,
    catalogue_random,
    catalogue_recurrence,
    catalogue_rl,
    catalogue_tokens,
    catalogue_loss,
)
ROWS = tuple(row for family in FAMILIES for row in family.ROWS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.row}: {m.fault}")
def test_gates_see_the_fault(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(row for row in ROWS if row.name == mutation.row)
    sample = row.samples[mutation.sample]
    monkeypatch.setattr(row.cls, "vjp", mutation.mutate(row.cls.vjp))
    for gate in mutation.gates:
        case = row.case(sample)
        with pytest.raises(AssertionError, match=case.name):
            gate(case)


def test_the_sample_of_mutations_is_wide() -> None:
    assert len({mutation.row for mutation in MUTATIONS}) >= 20
    assert {row.cls for row in catalogue.ROWS if row.name in {m.row for m in MUTATIONS}} >= {
        nn.Linear, nn.LinearAct, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.Mish, nn.GELU, nn.Flatten, nn.Dropout,
        nn.Sequential, nn.CrossEntropyLoss,
    }  # fmt: skip


# ---- the comparisons of float32 runs, on results changed by hand -----------------------------------------------------


@pytest.fixture
def case() -> Case:
    row = next(row for row in catalogue.ROWS if row.name == "LinearAct gelu")
    return row.case(next(sample for sample in row.samples if sample.label == "primes"))


@pytest.mark.parametrize("key", ["y", "dx0", "weight", "bias"])
def test_float32_comparison_sees_one_bad_element(case: Case, key: str) -> None:
    truth = reference(case)
    got = {name: array.astype(np.float32) for name, array in truth.items()}
    assert_float32(case, got, truth)
    for change in (1 + 1e-4, 0.0, np.nan, -1.0):
        wrong = got | {key: got[key].copy()}
        wrong[key].reshape(-1)[np.argmax(np.abs(got[key]))] *= change
        with pytest.raises(AssertionError, match=f"'{key}'"):
            assert_float32(case, wrong, truth)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_float32_comparison_sees_half_precision(case: Case, kind: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.float16 if kind == "float16" else ml_dtypes.bfloat16
    truth = reference(case)
    with pytest.raises(AssertionError, match="error of"):
        assert_float32(case, {key: array.astype(dtype).astype(np.float32) for key, array in truth.items()}, truth)


def test_float32_comparison_wants_float32_and_every_tensor(case: Case) -> None:
    truth = reference(case)
    with pytest.raises(AssertionError, match="is float64"):
        assert_float32(case, truth, truth)
    with pytest.raises(AssertionError, match="expected"):
        assert_float32(case, {"y": truth["y"].astype(np.float32)}, truth)
    with pytest.raises(AssertionError, match="'bias' is"):
        assert_float32(case, truth | {"bias": truth["bias"][:-1]}, truth)


def test_identity_sees_one_bit(case: Case) -> None:
    first = reference(case, "float32")
    second = {key: array.copy() for key, array in first.items()}
    assert_identical(case, first, second)
    second["weight"][3, 2] = np.nextafter(second["weight"][3, 2], np.float32(9))
    with pytest.raises(AssertionError, match="'weight' differs"):
        assert_identical(case, first, second)


def test_doubling_sees_what_was_not_added(case: Case) -> None:
    once = reference(case, "float32")
    with pytest.raises(AssertionError, match="'weight'"):
        assert_doubled(case, once, once)
    with pytest.raises(AssertionError, match="'y'"):
        assert_doubled(case, once, {key: 2 * array for key, array in once.items()})
