"""Hand-checkable cases: symptoms that users of training frameworks reported, and the kind of fault behind each.

Every case runs on the reference, and compiled where there is something to compile. Optimizers' cases step an arena
through the same programs as `tests/nn/optimizer`; here stand the numbers anyone can check by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from noeira import nn, ops
from noeira.nn.training import staging as training
from noeira.ops import control
from noeira.ops.dropout import threshold
from noeira.ops.random import bits
from tests import compiled
from tests.compare import SEED, Case
from tests.compiled import DROP_RATES, argmax_model, catalogue_programs, program_name, run, run_case, small_programs

PATHS = pytest.mark.parametrize("path", ["reference", pytest.param("compiled", marks=pytest.mark.compiled)])


# ---- cross-entropy ---------------------------------------------------------------------------------------------------

LOSSES: dict[str, Callable[[], nn.CrossEntropyLoss]] = {
    "cross_entropy": nn.CrossEntropyLoss,
    "cross_entropy_tenth": lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
    "cross_entropy_smoothed": compiled.smoothed,
    "cross_entropy_rows": nn.CrossEntropyLoss,
}


def cross_entropy(path: str, program: str, logits: Any, targets: Any) -> tuple[float, np.ndarray]:
    """Loss and gradient of the logits, in float32."""
    x = np.array(logits, np.float32)
    t = np.array(targets, np.float32 if program.endswith("rows") else np.int32)
    if path == "reference":
        loss = LOSSES[program]()
        with np.errstate(all="ignore"):
            value, saved = loss.forward(x, t)
            return float(value), loss.vjp(saved)
    value, grad = run(small_programs()[program], {"x0": x, "x1": t, "u": np.array(1, np.float32)})
    return float(value), grad


def log_sum_exp(path: str, logits: np.ndarray) -> np.ndarray:
    """Log-sum-exp of each row, as the loss saves it for its gradient."""
    labels = np.zeros(len(logits), np.int32)
    if path == "reference":
        with np.errstate(invalid="ignore"):
            return ops.cross_entropy(logits, labels)[2].sum(axis=-1)
    return run(small_programs()["log_sum_exp"], {"x0": logits, "x1": labels})[0].sum(axis=-1)


@PATHS
class TestSoftmaxWithHugeLogits:
    """Case 3."""

    def test_softmax_of_1e4_and_0_is_1_and_0(self, path: str) -> None:
        loss, grad = cross_entropy(path, "cross_entropy", [[1e4, 0]], [0])
        assert loss == 0 and np.array_equal(grad, [[0, 0]])
        loss, grad = cross_entropy(path, "cross_entropy", [[1e4, 0]], [1])
        assert loss == 1e4 and np.array_equal(grad, [[1, -1]])

    @pytest.mark.parametrize("size", [1e2, 1e4, 1e8, 1e30])
    @pytest.mark.parametrize("classes", [2, 3, 17])
    def test_any_size_at_any_place(self, path: str, size: float, classes: int) -> None:
        for place in range(classes):
            for label in range(classes):
                logits = np.full((1, classes), -size, np.float32)
                logits[0, place] = size
                loss, grad = cross_entropy(path, "cross_entropy", logits, [label])
                assert loss == pytest.approx(0 if label == place else 2 * size, rel=1e-6)
                want = np.zeros((1, classes))
                want[0, place] += 1
                want[0, label] -= 1
                np.testing.assert_array_equal(grad, want)

    @pytest.mark.parametrize("shift", [4096.0, -4096.0, 2.0**20])
    def test_a_constant_added_to_all_logits_changes_nothing(self, path: str, shift: float) -> None:
        logits = np.array([[0.5, -1.0, 2.0, 0.25], [0, 0, 0, 0]])
        want_loss, want = cross_entropy(path, "cross_entropy", logits, [1, 3])
        loss, grad = cross_entropy(path, "cross_entropy", logits + shift, [1, 3])  # exact in float32
        assert loss == pytest.approx(want_loss, rel=1e-6)
        np.testing.assert_allclose(grad, want, rtol=1e-6)

    def test_equal_huge_logits_stay_finite(self, path: str) -> None:
        for size in (1e30, -1e30, 3e38):
            loss, grad = cross_entropy(path, "cross_entropy", [[size] * 4], [2])
            assert math.isfinite(loss) and np.isfinite(grad).all()

    def test_a_masked_class_takes_no_part(self, path: str) -> None:
        masked = [[1.0, -np.inf, 2.0]]
        loss, grad = cross_entropy(path, "cross_entropy", masked, [2])
        want_loss, want = cross_entropy(path, "cross_entropy", [[1.0, 2.0]], [1])
        assert loss == pytest.approx(want_loss, rel=1e-6)
        np.testing.assert_allclose(grad, [[want[0, 0], 0, want[0, 1]]], rtol=1e-6)

    def test_a_masked_class_with_probability_0_costs_nothing(self, path: str) -> None:
        loss, grad = cross_entropy(path, "cross_entropy_rows", [[1.0, -np.inf, 2.0]], [[0.25, 0, 0.75]])
        assert math.isfinite(loss) and np.isfinite(grad).all() and grad[0, 1] == 0

    def test_the_log_sum_exp_of_nothing_is_minus_infinity_with_gradient_0(self, path: str) -> None:
        logits = np.full((3, 4), -np.inf, np.float32)
        logits[1] = (0, 1, 2, 3)
        lse = log_sum_exp(path, logits)
        assert lse[0] == lse[2] == -np.inf and lse[1] == pytest.approx(3.4401897, rel=1e-6)
        # what is left of the loss's gradient is the target's: the softmax's part is 0, not NaN
        _, grad = cross_entropy(path, "cross_entropy", logits, [0, 1, 3])
        np.testing.assert_allclose(grad[0], [-1 / 3, 0, 0, 0], rtol=1e-6)
        np.testing.assert_allclose(grad[2], [0, 0, 0, -1 / 3], rtol=1e-6)
        assert np.isfinite(grad[1]).all()


@PATHS
class TestSmoothingAndIgnoreIndex:
    """Case 7: pytorch 73205."""

    def test_loss_and_gradient_by_hand(self, path: str) -> None:
        loss, grad = cross_entropy(path, "cross_entropy_tenth", [[2, 0], [9, 9]], [0, -100])
        assert loss == pytest.approx(0.226928, abs=1e-6)
        assert np.array_equal(grad[1], [0, 0])
        p = 1 / (1 + math.exp(-2))
        np.testing.assert_allclose(grad[0], [p - 0.95, 0.95 - p], rtol=1e-5)

    @pytest.mark.parametrize(
        ("program", "ignored"), [("cross_entropy", -100), ("cross_entropy_tenth", -100), ("cross_entropy_smoothed", 1)]
    )
    @pytest.mark.parametrize("bad", [0.0, 1e30, np.inf, -np.inf, np.nan])
    @pytest.mark.parametrize("rows", [[0], [2], [0, 1, 4], [3, 4]])
    def test_ignored_rows_take_no_part_whatever_is_in_them(
        self, path: str, program: str, ignored: int, bad: float, rows: list[int]
    ) -> None:
        rng = np.random.default_rng(0)
        logits, labels = rng.standard_normal((5, 2)).astype(np.float32), np.zeros(5, np.int32)
        kept = [row for row in range(5) if row not in rows]
        want_loss, want = cross_entropy(path, program, logits[kept], labels[kept])
        logits[rows], labels[rows] = bad, ignored
        loss, grad = cross_entropy(path, program, logits, labels)
        assert loss == pytest.approx(want_loss, rel=1e-6)
        np.testing.assert_allclose(grad[kept], want, rtol=1e-5)
        assert not grad[rows].any()  # exactly 0, not NaN

    def test_nothing_but_ignored_rows_is_a_loss_of_0(self, path: str) -> None:
        for program, ignored in (("cross_entropy_tenth", -100), ("cross_entropy_smoothed", 1)):
            loss, grad = cross_entropy(path, program, np.ones((3, 2)), [ignored] * 3)
            assert loss == 0 and not grad.any()

    def test_no_row_at_all_is_a_loss_of_0(self, path: str) -> None:
        for program in ("cross_entropy_tenth", "cross_entropy_smoothed"):
            loss, grad = cross_entropy(path, program, np.ones((0, 2)), np.zeros(0))
            assert loss == 0 and grad.shape == (0, 2)


@pytest.mark.compiled
@pytest.mark.parametrize("label", [2, -1, 1000, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("program", ["cross_entropy", "cross_entropy_smoothed"])
def test_a_label_that_is_no_class_makes_the_compiled_loss_nan_and_reads_nothing(program: str, label: int) -> None:
    loss, _ = cross_entropy("compiled", program, np.ones((3, 2)), [0, label, 0])
    assert math.isnan(loss)


# ---- optimizers ------------------------------------------------------------------------------------------------------


def step(path: str, optimizer: nn.Optimizer, p: float, *gradients: float, decays: bool = True) -> dict[str, np.ndarray]:
    """Steps on one parameter, in float32; what the arenas hold afterwards."""
    memory = {role: np.zeros(1, np.float32) for role in ("val", "grd", "m", "v")}
    memory["val"][0] = p
    counters = np.zeros(control.COUNTERS, np.int64)
    counters[[control.CURSOR, control.BAD_INDEX]] = (1, -1)
    memory |= {
        "counters": counters,
        "record": np.zeros((1, control.LOG_COLUMNS), np.float32),
        "segments": np.array([[0, 1]]),
        "multipliers": np.array([[1.0, float(decays)]]),
        "hyper": optimizer.hyper(clear=True),
        "lr_table": np.array([optimizer.lr]),
    }
    for gradient in gradients:
        memory["grd"][0], memory["accumulated"] = gradient, np.ones(1, np.float32)
        if path == "reference":
            with np.errstate(all="ignore"):
                optimizer.apply(memory)
        else:
            program = small_programs()[f"{optimizer.kind}_float32"]
            run(program, {name: memory[name] for name in program.inputs})
    return memory


@PATHS
class TestAdamsFirstStep:
    """Case 8: mlx 1640."""

    def test_by_hand(self, path: str) -> None:
        assert step(path, nn.Adam(0.1), 0, 3.0)["val"][0] == pytest.approx(-0.1, rel=1e-6)
        assert step(path, nn.Adam(0.1, eps=1e-8), 0, 1e-8)["val"][0] == pytest.approx(-0.05, rel=1e-5)

    @pytest.mark.parametrize("gradient", [10.0**k for k in range(-12, 16, 3)])
    @pytest.mark.parametrize("eps", [1e-8, 1e-3])
    @pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9), (0.5, 0.0)])
    def test_eps_stands_outside_the_root_and_biases_cancel(
        self, path: str, gradient: float, eps: float, betas: tuple[float, float]
    ) -> None:
        for sign in (1, -1):
            got = step(path, nn.Adam(0.1, betas, eps), 0, sign * gradient)["val"][0]
            assert got == pytest.approx(-sign * 0.1 * gradient / (gradient + eps), rel=1e-4)


@PATHS
class TestDecoupledDecay:
    """Case 9."""

    def test_by_hand(self, path: str) -> None:
        memory = step(path, nn.AdamW(0.1, weight_decay=0.1), 1, 0.0)
        assert memory["val"][0] == pytest.approx(0.99, rel=1e-7)
        assert memory["m"][0] == memory["v"][0] == 0

    def test_it_is_the_factor_1_minus_lr_wd_each_step_whatever_the_gradient(self, path: str) -> None:
        for gradient in (0.0, 2.0, -5.0):
            plain = step(path, nn.Adam(0.1), 0, gradient)["val"][0]
            decayed = step(path, nn.AdamW(0.1, weight_decay=0.1), 1, gradient)["val"][0]
            assert decayed == pytest.approx(0.99 + plain, rel=1e-6)
        assert step(path, nn.AdamW(0.1, weight_decay=0.1), 1, 0, 0, 0)["val"][0] == pytest.approx(0.99**3, rel=1e-6)

    def test_coupled_decay_goes_through_the_moments(self, path: str) -> None:
        memory = step(path, nn.Adam(0.1, weight_decay=0.1), 1, 0.0)
        assert memory["m"][0] == pytest.approx(0.01, rel=1e-6)
        assert memory["val"][0] == pytest.approx(0.9, rel=1e-6)
        assert step(path, nn.SGD(0.1, weight_decay=0.1), 1, 0.0)["val"][0] == pytest.approx(0.99, rel=1e-6)

    def test_biases_are_not_decayed(self, path: str) -> None:
        for make in (nn.AdamW, nn.Adam, nn.SGD):
            assert step(path, make(0.1, weight_decay=0.1), 1, 0.0, decays=False)["val"][0] == 1


@PATHS
class TestMomentum:
    """Case 10."""

    def test_by_hand(self, path: str) -> None:
        assert step(path, nn.SGD(1.0, momentum=0.9), 0, 1.0)["val"][0] == -1
        assert step(path, nn.SGD(1.0, momentum=0.9), 0, 1.0, 1.0)["val"][0] == pytest.approx(-2.9, rel=1e-6)

    def test_variants(self, path: str) -> None:
        cases = {
            nn.SGD(1.0, momentum=0.9, dampening=0.5): -1 - 1.4,  # the first velocity is the whole gradient
            nn.SGD(1.0, momentum=0.9, nesterov=True): -1.9 - 2.71,
            nn.SGD(1.0, momentum=0.0, dampening=0.5): -2,
        }
        for optimizer, value in cases.items():
            assert step(path, optimizer, 0, 1.0, 1.0)["val"][0] == pytest.approx(value, rel=1e-6)


@PATHS
class TestSkippedStep:
    """Case 12: lightning 16228. Where the bad element lies and what else stays is in `test_optimizers`."""

    @pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
    def test_a_bad_gradient_at_step_3_is_as_if_it_had_not_been(self, path: str, bad: float) -> None:
        for make in (lambda: nn.Adam(0.1), lambda: nn.AdamW(0.1), lambda: nn.SGD(0.1, momentum=0.9, dampening=0.5)):
            skipped, without = step(path, make(), 1, 1.0, 2.0, bad, 3.0), step(path, make(), 1, 1.0, 2.0, 3.0)
            for role in ("val", "m", "v"):
                assert skipped[role].tobytes() == without[role].tobytes()
            assert skipped["counters"][control.APPLIED] == without["counters"][control.APPLIED] == 3
            assert (skipped["counters"][control.SKIPPED], without["counters"][control.SKIPPED]) == (1, 0)

    def test_a_bad_first_gradient_does_not_use_up_the_first_step(self, path: str) -> None:
        optimizer = nn.SGD(1.0, momentum=0.9, dampening=0.5)
        assert step(path, optimizer, 0, np.nan, 1.0)["val"][0] == -1
        assert step(path, nn.Adam(0.1), 0, np.inf, 3.0)["val"][0] == pytest.approx(-0.1, rel=1e-6)


# ---- dropout ---------------------------------------------------------------------------------------------------------


def masks(path: str, key: tuple[int, int, int], x: np.ndarray) -> list[np.ndarray]:
    """Dropout at all `DROP_RATES` with one key."""
    array = np.array(key, np.int64)
    if path == "reference":
        return [ops.dropout(x, array, p) for p in DROP_RATES]
    return run(small_programs()["masks"], {"x": x, "key": array})


def through_layer(path: str, p: float, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Output and input gradient (of x itself as output gradient) of a Dropout layer."""
    layer = nn.Dropout(p)
    if path == "reference":
        nn.seed(SEED)
        y, saved = layer.forward(x)
        return y, layer.vjp(saved, x)
    row = next(row for row in compiled.catalogue.ROWS if row.name == "Dropout")
    sample = next(sample for sample in row.samples if sample.args == (p,))
    counters = np.zeros(control.COUNTERS, np.int64)
    counters[[control.SEED, control.STEP]] = (SEED, 1)
    y, dx = run(catalogue_programs()[program_name(row, sample, "float32")], {"x0": x, "u": x, "counters": counters})
    return y, dx


@PATHS
class TestDropoutEdges:
    """Case 17."""

    def test_p_0_is_the_identity(self, path: str) -> None:
        x = np.array([[1, -2, np.inf, 0]], np.float32)
        for array in through_layer(path, 0.0, x):
            np.testing.assert_array_equal(array, x)

    def test_p_1_gives_zeros_even_of_nan(self, path: str) -> None:
        x = np.array([[1, -2, np.inf, np.nan, 1e38]], np.float32)
        with np.errstate(invalid="ignore"):
            for array in through_layer(path, 1.0, x):
                np.testing.assert_array_equal(array, np.zeros_like(x))

    def test_the_gradient_has_the_forwards_mask(self, path: str) -> None:
        y, dx = through_layer(path, 0.5, np.ones((50, 21), np.float32))
        np.testing.assert_array_equal(y, dx)
        assert set(np.unique(y)) == {0, 2}

    @pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1023, 40_000])
    @pytest.mark.parametrize(
        "key", [(0, 0, 0), (7, 1, 3), (2**63 - 1, 5, 2**32 - 1), (-1, 2**32 + 9, 1), (-(2**63), 2**40, 2**31)]
    )
    def test_masks_are_those_of_the_counter_hash(self, path: str, key: tuple[int, int, int], size: int) -> None:
        words = bits(size, seed=key[0], step=key[1], stream=key[2]).astype(np.uint64)
        for p, y in zip(DROP_RATES, masks(path, key, np.ones(size, np.float32)), strict=True):
            np.testing.assert_array_equal(y, np.where(words >= threshold(p), np.float32(1 / (1 - p)), 0))

    def test_the_share_dropped_is_p(self, path: str) -> None:
        n = 40_000
        for p, y in zip(DROP_RATES, masks(path, (1, 2, 3), np.ones(n, np.float32)), strict=True):
            assert abs((y == 0).mean() - p) < 5 * math.sqrt(p * (1 - p) / n)
            assert abs(y.mean() - 1) < 5 * math.sqrt(p / (1 - p) / n)

    def test_masks_differ_between_layers_and_steps_and_seeds(self, path: str) -> None:
        net = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
        x = np.ones(4096, np.float32)

        def both(seed: int, step: int) -> np.ndarray:
            if path == "reference":
                nn.seed(seed)
                for _ in range(step):
                    y = net(x)
                return y
            counters = np.zeros(control.COUNTERS, np.int64)
            counters[[control.SEED, control.STEP]] = (seed, step)
            return run(small_programs()["two_dropouts"], {"x0": x, "u": x, "counters": counters})[0]

        draws = [both(0, 1), both(0, 2), both(1, 1), both(1, 2)]
        for i, y in enumerate(draws):
            assert abs((y > 0).mean() - 0.25) < 0.04  # one mask twice would keep half
            for other in draws[:i]:
                assert abs(((y > 0) == (other > 0)).mean() - 0.625) < 0.05  # independent: 1/16 + 9/16
        np.testing.assert_array_equal(both(0, 2), draws[1])


def test_evaluation_is_the_identity() -> None:
    x = np.ones((3, 4), np.float32)
    layer = nn.Dropout(0.9).eval()
    y, saved = layer.forward(x)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(layer.vjp(saved, x), x)


@pytest.mark.compiled
def test_both_paths_draw_the_same_masks_in_a_chain() -> None:
    net, x = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)), np.ones(999, np.float32)
    nn.seed(3)
    y, saved = net.forward(x)
    counters = np.zeros(control.COUNTERS, np.int64)
    counters[[control.SEED, control.STEP]] = (3, 1)
    arrays = {"x0": x, "u": x, "counters": counters}
    for got, want in zip(run(small_programs()["two_dropouts"], arrays), (y, net.vjp(saved, x)), strict=True):
        np.testing.assert_array_equal(got, want)


# ---- the last batch --------------------------------------------------------------------------------------------------


@PATHS
class TestLastPartialBatch:
    """Case 22."""

    @pytest.mark.parametrize(("right", "wrong", "batch"), [(8, 2, 8), (3, 4, 5), (10, 1, 10), (1, 1, 1), (0, 3, 2)])
    def test_accuracy_and_loss_weigh_by_rows(self, path: str, right: int, wrong: int, batch: int) -> None:
        """Rows that are right first, then rows that are wrong; the last batch has fewer rows than the others."""
        n = right + wrong
        x = np.zeros((n, 2), np.float32)
        x[:, 0] = 2.0
        labels = np.array([0] * right + [1] * wrong, np.int64)
        totals, counters = np.zeros(control.EVAL_TOTALS), np.zeros(control.COUNTERS, np.int64)
        loss, model = nn.CrossEntropyLoss(), argmax_model()
        for start in range(0, n, batch):
            rows = np.arange(start, min(start + batch, n), dtype=np.int32)
            if path == "reference":
                value, saved = loss.forward(model(x[rows]), labels[rows])
                ops.accumulate_totals(totals, x[rows], labels[rows], value, loss.weight(saved))
            else:
                counters[control.CURSOR] = 0
                arrays = {"inputs": x, "targets": labels, "order": rows[None], "totals": totals, "counters": counters}
                run(small_programs()["evaluation"], {**arrays, **compiled.bindings(model)})
        assert totals[control.EVAL_ROWS] == totals[control.EVAL_WEIGHT] == n
        assert totals[control.EVAL_CORRECT] / n == right / n  # 0.8 of 8 and 2, not the mean 0.5 of two batches
        cost = math.log1p(math.exp(-2.0))
        assert totals[control.EVAL_LOSS] / n == pytest.approx((right * cost + wrong * (cost + 2)) / n, rel=1e-6)


def test_a_gradient_summed_over_batches_is_that_of_one_batch() -> None:
    """The loss's vjp times its weight is a sum over rows, so batches of 8 and 2 add up to a batch of 10."""
    rng = np.random.default_rng(0)
    net, loss = nn.Linear(3, 2).init().to(dtype="float64"), nn.CrossEntropyLoss([1.0, 3.0], label_smoothing=0.1)
    x, labels = rng.standard_normal((10, 3)), rng.integers(0, 2, 10)

    def gradient(*batches: slice) -> np.ndarray:
        net.zero_grad()
        total = 0.0
        for batch in batches:
            y, saved = net.forward(x[batch])
            _, kept = loss.forward(y, labels[batch])
            net.vjp(saved, loss.vjp(kept, loss.weight(kept)))
            total += float(loss.weight(kept))
        return net.weight.grd / total

    np.testing.assert_allclose(gradient(slice(0, 8), slice(8, 10)), gradient(slice(0, 10)), rtol=1e-12)


def test_the_trainers_evaluation_is_what_runs_here() -> None:
    """`small_programs` holds the very program that a trainer stages."""
    spec = training.DataSpec((2,), "float32", (), "int64", 1.0)
    graph = training.evaluation(argmax_model(), nn.CrossEntropyLoss(), spec, "float32")
    assert "noeira.accumulate_totals" in graph.text()


# ---- activations far out ---------------------------------------------------------------------------------------------

FAR = np.array([[0.0, -0.0, 1e-30, -1e-30, 1.0, -1.0, 20, -20, 88, -88, 89, -89, 100, -100, 1e4, -1e4, 1e18, -1e18]])
ACTIVATION_ROWS = [row for row in compiled.catalogue.ROWS if issubclass(row.cls, nn.Activation)]


@PATHS
@pytest.mark.parametrize("row", ACTIVATION_ROWS, ids=lambda row: row.name)
def test_activations_are_finite_and_right_for_any_finite_input(path: str, row: compiled.Row) -> None:
    """The kind behind case 3: exp, x^3 and x^2 overflow long before the function does."""
    case = Case(row.name, row.make(), (FAR.astype(np.float32),))
    sample = row.samples[0]
    with np.errstate(over="ignore"):
        want, saved = case.subject.forward(FAR)
        slope = case.subject.vjp(saved, np.ones_like(FAR))
        if path == "reference":
            y, saved = case.subject.forward(FAR.astype(np.float32))
            dx = case.subject.vjp(saved, np.ones_like(FAR, np.float32))
        else:
            got = run_case(catalogue_programs()[program_name(row, sample, "float32")], case)
            y, dx = got["y"], got["dx0"] / case.upstream(FAR.shape, "float32")
    np.testing.assert_allclose(y, want, rtol=2e-6, atol=1e-36)  # float32 ends there
    # tanh and sigmoid take the derivative from an output that float32 rounds to 1
    np.testing.assert_allclose(dx, slope, rtol=4e-6, atol=1e-36 if row.saves == ("x",) else 1e-7)


@PATHS
@pytest.mark.parametrize("row", ACTIVATION_ROWS, ids=lambda row: row.name)
def test_nan_stays_nan(path: str, row: compiled.Row) -> None:
    case = Case(row.name, row.make(), (np.array([[np.nan, 1.0, np.nan, -1.0]], np.float32),))
    with np.errstate(invalid="ignore"):  # NumPy warns of NaN in logaddexp
        if path == "reference":
            y = case.subject.forward(case.inputs[0])[0]
        else:
            y = run_case(catalogue_programs()[program_name(row, row.samples[0], "float32")], case)["y"]
    np.testing.assert_array_equal(np.isnan(y), [[True, False, True, False]])
