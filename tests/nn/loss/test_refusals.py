"""Every loss refuses predictions, output gradients, masks and arguments of the wrong kind, and says so by its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from noeira import nn
from noeira.runtime.staging import StagedGraph, staging
from tests import catalogue
from tests.catalogue import Row

FIRST: dict[type, Row] = {}
for _row in catalogue.every_row():
    if issubclass(_row.cls, nn.Loss):
        FIRST.setdefault(_row.cls, _row)
EVERY_LOSS = pytest.mark.parametrize("row", FIRST.values(), ids=lambda row: row.cls.__name__)


def _given(row: Row, reduction: str = "mean") -> tuple[Any, np.ndarray, np.ndarray]:
    """The loss with its first sample's prediction and target."""
    case = row.case(row.samples[0])
    case.subject.reduction = reduction  # type: ignore[union-attr]
    return (case.subject, *case.inputs[:2])


def _refused(row: Row, words: str) -> Any:
    return pytest.raises(nn.ShapeError, match=f"^{row.cls.__name__}: {words}")


def test_every_public_loss_is_tried() -> None:
    public = {getattr(nn, name) for name in nn.__all__}
    losses = {c for c in public if isinstance(c, type) and issubclass(c, nn.Loss)} - {nn.Loss, nn.ElementwiseLoss}
    assert losses == FIRST.keys() and len(losses) >= 11


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "complex64"])
@EVERY_LOSS
def test_predictions_that_are_no_floating_point_numbers(row: Row, dtype: str) -> None:
    loss, p, t = _given(row)
    words = re.escape(f"expected floating-point predictions, got {dtype} {list(p.shape)}")
    for call in (loss, loss.forward):
        with _refused(row, words):
            call(np.ones(p.shape, dtype), t)
    graph = StagedGraph("wrong")
    with staging(graph), _refused(row, words):
        loss.forward(graph.input("p", p.shape, dtype), graph.input("t", t.shape, t.dtype))


@pytest.mark.parametrize("wrong", [[[1.0]], 1.0, None, "text"], ids=repr)
@EVERY_LOSS
def test_what_is_no_array(row: Row, wrong: Any) -> None:
    loss, p, t = _given(row)
    for arguments in ((wrong, t), (p, wrong)):
        with _refused(row, f"expected an array, got {type(wrong).__name__}"):
            loss(*arguments)


@pytest.mark.parametrize("dtype", ["complex64", "object", "U3"])
@EVERY_LOSS
def test_targets_that_are_no_numbers(row: Row, dtype: str) -> None:
    loss, p, t = _given(row)
    with _refused(row, f"expected .*got .*{np.zeros(1, dtype).dtype}"):
        loss(p, np.zeros(t.shape, dtype))
    with _refused(row, f"expected .*got .*{np.zeros(1, dtype).dtype}"):
        loss.check_targets(np.zeros(t.shape, dtype), p.shape, "train")


@EVERY_LOSS
def test_a_prediction_without_a_batch(row: Row) -> None:
    loss, p, t = _given(row)
    with _refused(row, r"expected .*, got .*\[\]"):
        loss(p[0, 0] if p.ndim == 2 else p[0, 0, 0], t.reshape(-1)[0])


# ---- output gradients ------------------------------------------------------------------------------------------------


@EVERY_LOSS
def test_an_output_gradient_of_another_shape(row: Row) -> None:
    for reduction in ("mean", "sum", "none"):
        loss, p, t = _given(row, reduction)
        y, saved = loss.forward(p, t)
        y = np.asarray(y)
        assert loss.vjp(saved, np.ones_like(y)).shape == p.shape
        wrong = {(), (1,), (*y.shape, 1), p.shape, (1, *p.shape), (*y.shape[:-1], 1), (0,)} - {y.shape}
        for shape in wrong:
            words = re.escape(f"expected an output gradient of shape {list(y.shape)}, got {list(shape)}")
            with _refused(row, words):
                loss.vjp(saved, np.ones(shape, np.float32))
            graph = StagedGraph("wrong")
            with staging(graph):
                _, kept = loss.forward(graph.input("p", p.shape, p.dtype), graph.input("t", t.shape, t.dtype))
                with _refused(row, words):
                    loss.vjp(kept, graph.input("u", shape, "float32"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.ones((), np.int64), r"expected a floating-point output gradient, got int64 \[\]"),
        (np.ones((), np.complex64), r"expected a floating-point output gradient, got complex64 \[\]"),
        (np.ones((), bool), r"expected a floating-point output gradient, got bool \[\]"),
        (True, "expected an array or a number as output gradient, got bool"),
        ([1.0], "expected an array or a number as output gradient, got list"),
        (None, "expected an array or a number as output gradient, got NoneType"),
    ],
    ids=repr,
)
@EVERY_LOSS
def test_an_output_gradient_of_another_kind(row: Row, wrong: Any, words: str) -> None:
    loss, p, t = _given(row)
    saved = loss.forward(p, t)[1]
    with _refused(row, words):
        loss.vjp(saved, wrong)


@EVERY_LOSS
def test_an_output_gradient_of_another_precision_leaves_the_gradients_dtype(row: Row) -> None:
    loss, p, t = _given(row)
    saved = loss.forward(p, t)[1]
    for grad in (2, 2.0, np.float64(2), np.full((), 2.0)):
        got = loss.vjp(saved, grad)
        assert got.dtype == p.dtype
        np.testing.assert_allclose(got, 2 * loss.vjp(saved), rtol=1e-6)


# ---- masks -----------------------------------------------------------------------------------------------------------


def _mask(loss: Any, p: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Every second row (or element) masked out."""
    shape = p.shape[:-1] if isinstance(loss, nn.CrossEntropyLoss) else t.shape
    return (np.arange(int(np.prod(shape))) % 2 == 1).reshape(shape)


@EVERY_LOSS
def test_masks_of_another_kind(row: Row) -> None:
    loss, p, t = _given(row)
    mask = _mask(loss, p, t)
    words = re.escape(f"expected a boolean mask of shape {list(mask.shape)}, got ")
    wrong: list[tuple[Any, str]] = [
        (mask.astype(np.int64), re.escape(f"int64 {list(mask.shape)}")),
        (mask.astype(np.float32), re.escape(f"float32 {list(mask.shape)}")),
        (mask[1:], re.escape(f"bool {list(mask[1:].shape)}")),
        (mask[..., None], re.escape(f"bool {[*mask.shape, 1]}")),
        (np.ones((), bool), r"bool \[\]"),
        (mask.tolist(), "list"),
    ]
    for value, got in wrong:
        with _refused(row, words + got):
            loss(p, t, value)
    graph = StagedGraph("wrong")
    with staging(graph), _refused(row, words + r"int8 "):
        staged = [graph.input(str(i), x.shape, x.dtype) for i, x in enumerate((p, t, mask.astype(np.int8)))]
        loss.forward(*staged)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "batchmean"])
@EVERY_LOSS
def test_what_is_masked_out_counts_nowhere_whatever_is_in_it(row: Row, reduction: str) -> None:
    if reduction == "batchmean" and not issubclass(row.cls, nn.ElementwiseLoss):
        pytest.skip("cross-entropy has no such reduction")
    loss, p, t = _given(row, reduction)
    mask = np.zeros(len(p), bool)
    mask[1::2] = True  # whole samples, so that the loss is that of the others
    mask = np.broadcast_to(mask.reshape(-1, *(1,) * (_mask(loss, p, t).ndim - 1)), _mask(loss, p, t).shape)
    bad, target = p.copy(), t.copy()
    if np.issubdtype(t.dtype, np.floating):
        target[::2] = np.nan
    else:
        target[::2] = 12345  # no class
    want, others = loss.forward(p[1::2], t[1::2])
    for value in (np.nan, np.inf, -np.inf):
        bad[::2] = value
        with np.errstate(all="ignore"):
            got, saved = loss.forward(bad, target, mask)
            u = np.random.default_rng(0).standard_normal(np.shape(got)).astype(np.float32)
            grad = loss.vjp(saved, u)
        assert np.asarray(got).dtype == grad.dtype == np.float32
        part = u if reduction != "none" else u[1::2]
        np.testing.assert_allclose(got if reduction != "none" else got[1::2], want, rtol=1e-6)
        np.testing.assert_allclose(grad[1::2], loss.vjp(others, part), rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(loss.weight(saved), loss.weight(others))
        assert not grad[::2].any()
        if reduction == "none":
            assert not got[::2].any() and not np.signbit(got[::2]).any()
        np.testing.assert_array_equal(loss(bad, target, mask), got)  # a call passes the mask on


@EVERY_LOSS
def test_a_mask_that_hides_all_gives_0(row: Row) -> None:
    loss, p, t = _given(row)
    got, saved = loss.forward(p * np.nan, t, np.zeros_like(_mask(loss, p, t)))
    assert got == 0 and not np.signbit(got) and not loss.vjp(saved).any() and loss.weight(saved) == 0


@EVERY_LOSS
def test_a_mask_that_hides_nothing_changes_nothing(row: Row) -> None:
    loss, p, t = _given(row)
    mask = np.ones_like(_mask(loss, p, t))
    (want, plain), (got, saved) = loss.forward(p, t), loss.forward(p, t, mask)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(loss.vjp(saved), loss.vjp(plain), rtol=1e-5, atol=1e-8)


# ---- constructors ----------------------------------------------------------------------------------------------------

ARGUMENTS: dict[str, tuple[Callable[..., nn.Loss], tuple[Any, ...], tuple[Any, ...]]] = {
    # argument: (of what, good values, bad values)
    "label_smoothing": (nn.CrossEntropyLoss, (np.float32(0.5), 0, 1), (-0.1, 1.5, np.nan, np.inf, True, "0.1", None)),
    "ignore_index": (nn.CrossEntropyLoss, (np.int64(3), -1), (1.0, "a", True, None, 2**31, np.float32(1))),
    "weight": (
        nn.SequenceCrossEntropyLoss,
        ([1, 2], np.ones(3, np.float32)),
        ([1, np.nan], [-1.0, 1.0], [[1.0]], 1.0, [True], ["a"], [1, [2, 3]], [], [1j]),
    ),
    "beta": (nn.SmoothL1Loss, (1, np.float32(0.5), np.int8(2)), (0, -1.0, np.nan, np.inf, True, "1", None)),
    "delta": (nn.HuberLoss, (1, np.float32(0.5), np.int8(2)), (0, -1.0, np.nan, np.inf, True, "1", None)),
    "eps": (nn.GaussianNLLLoss, (1, np.float64(1e-3)), (0, -1e-6, np.nan, True, "1", None)),
    "full": (nn.GaussianNLLLoss, (True, np.bool_(False)), (1, "no", None)),
    "variance": (nn.GaussianNLLLoss, ("log", "value"), ("std", None, 1)),
    "limits": (
        lambda **given: nn.GaussianNLLLoss(variance="log", **given),
        ((-1, 2.0), [np.float32(-1), np.int64(2)], (-np.inf, 3.0), None),
        ((2.0, 1.0), (1.0, 1.0), (1.0,), (1.0, 2.0, 3.0), 1.0, ("a", "b"), (False, True), (np.nan, 1.0)),
    ),
    "pos_weight": (nn.BCEWithLogitsLoss, (2, [1.0, 2.0], np.float32(3)), (np.inf, [[1.0]], True, "a", [], [1j])),
    "log_target": (nn.KLDivLoss, (True, np.bool_(False)), (1, "yes", None)),
    "bins": (nn.TwoHotLoss, (2, np.int32(9)), (1, 2.0, True, "9", None, -3)),
    "low": (nn.TwoHotLoss, (-3, np.float32(0.5)), (np.nan, -np.inf, True, "0", None, 20.0, 30.0)),
    "high": (nn.TwoHotLoss, (3, np.float32(0.5)), (np.nan, np.inf, True, "0", None, -20.0, -30.0)),
    "symlog": (nn.TwoHotLoss, (False, np.bool_(True)), (0, "no", None)),
    "factor": (nn.MSELoss, (2, np.float32(0.5), np.int64(-1)), (np.nan, np.inf, True, "1", None)),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_constructor_arguments(name: str) -> None:
    make, good, bad = ARGUMENTS[name]
    for value in good:
        repr(make(**{name: value}))
    for value in bad:
        with pytest.raises(ValueError, match=rf"^\w+Loss: expected .*{name}.*, got "):
            make(**{name: value})
            pytest.fail(f"{name}={value!r} was taken")


@EVERY_LOSS
def test_reductions(row: Row) -> None:
    for wrong in ("median", "", None, 1, ["mean"], True):
        with pytest.raises(ValueError, match=f"^{row.cls.__name__}: expected reduction to be one of mean, .*, got "):
            row.cls(reduction=wrong)


# ---- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("wrong", [-1, 4, 2**40])
def test_the_first_label_that_is_no_class_is_named_with_its_place(wrong: int, reduction: str) -> None:
    labels = np.zeros((2, 3), np.int64)
    labels[1, 2] = labels[1, 1] = wrong
    z = np.zeros((2, 3, 4), np.float32)
    for cls in (nn.CrossEntropyLoss, nn.SequenceCrossEntropyLoss):
        loss = cls(reduction=reduction)
        with pytest.raises(
            nn.ShapeError, match=rf"^{cls.__name__}: expected class labels 0\.\.3, got {wrong} at \(1, 1\)$"
        ):
            loss(z, labels)
        words = rf"^{cls.__name__}: expected class labels 0\.\.3 .* in data set 'train', got {wrong} at \(1, 1\)$"
        with pytest.raises(nn.ShapeError, match=words):
            loss.check_targets(labels, z.shape, "train")
        assert np.isfinite(loss(z, labels, labels == 0)).all()  # what is masked out is not looked at


def test_no_class_at_all() -> None:
    for cls, shape in ((nn.CrossEntropyLoss, (2, 0)), (nn.SequenceCrossEntropyLoss, (2, 3, 0))):
        words = rf"^{cls.__name__}: expected logits \[batch, \.\.\., C\] of at least one class, got "
        with pytest.raises(nn.ShapeError, match=words):
            cls()(np.zeros(shape, np.float32), np.zeros(shape[:-1], np.int64))
    with pytest.raises(
        nn.ShapeError, match=r"^SoftCrossEntropyLoss: expected logits .* at least one class, got \[2, 0\]"
    ):
        nn.SoftCrossEntropyLoss()(np.zeros((2, 0), np.float32), np.zeros((2, 0), np.float32))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64", "int32", ">i4"])
def test_labels_of_any_integer_dtype_take_a_mask(dtype: str) -> None:
    rng = np.random.default_rng(1)
    z, labels, mask = rng.standard_normal((6, 5)).astype(np.float32), rng.integers(0, 5, 6), np.arange(6) > 2
    for reduction in ("mean", "sum", "none"):
        loss = nn.CrossEntropyLoss(ignore_index=-1000, reduction=reduction)
        np.testing.assert_array_equal(loss(z, labels.astype(dtype), mask), loss(z, labels, mask))


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"weight": [0.5, 0.0, 2.0]}], ids=repr)
def test_ignored_rows_are_0_apart_whatever_is_in_them(options: dict[str, Any]) -> None:
    loss = nn.CrossEntropyLoss(reduction="none", **options)
    z = np.array([[np.nan] * 3, [100.0, 0, 0], [np.inf, 0, 1], [0.5, 1, 2]], np.float32)
    got, saved = loss.forward(z, np.array([-100, 0, -100, 2]))
    grad = loss.vjp(saved, np.array([np.nan, 1, np.inf, -1], np.float32))
    assert not got[[0, 2]].any() and not np.signbit(got).any() and not grad[[0, 2]].any()
    assert not np.signbit(grad[[0, 2]]).any() and np.isfinite(grad).all() and got[3] > 0 and grad[3].any()
