"""Rows of the losses other than plain cross-entropy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from noeira import nn
from tests.catalogue import KINKS, Mistake, Row, Sample, _labels, _rows, _zeros
from tests.compare import Twin

Element = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


def _reduced(element: Element) -> Callable[[Any], Twin]:
    """The twin of a loss whose elements PyTorch computes."""

    def make(loss: Any) -> Twin:
        def twin(
            params: dict[str, torch.Tensor], p: torch.Tensor, t: torch.Tensor, mask: torch.Tensor | None = None
        ) -> torch.Tensor:
            values = element(loss, p, t) * loss.factor
            values = values if mask is None else torch.where(mask, values, torch.zeros_like(values))
            if loss.reduction == "none":
                return values
            number = {
                "mean": values.numel() if mask is None else int(mask.sum()),
                "batchmean": len(values),
                "sum": 1,
            }[loss.reduction]
            return values.sum() / max(number, 1)

        return twin

    return make


def _same(*shape: int) -> tuple[Any, ...]:
    return (shape, shape)


def _mask(*shape: int, share: float = 0.5) -> Any:
    return lambda draw: draw.random(shape) < share


def _samples(second: Any = None, width: int = 1, *, every: bool = False) -> tuple[Sample, ...]:
    """`second` makes the target of a prediction's shape; `width` predictions belong to one target. All of them are
    compiled where `every`: what they differ in is the same code for all losses of elements."""

    def pair(*shape: int) -> tuple[Any, Any]:
        return (*shape[:-1], width * shape[-1]), shape if second is None else second(*shape)

    return (
        Sample("rank 2", (), pair(7, 5)),
        Sample("batch 1", (), pair(1, 5)),
        Sample("rank 4", (), pair(2, 3, 4, 5), compiled=every),
        Sample("sum", ("sum",), pair(7, 5), compiled=every),
        Sample("mean over samples", ("batchmean",), pair(7, 5), compiled=every),
        Sample("none", ("none",), pair(7, 5)),
        Sample("size-1 dimensions", (), pair(1, 1), compiled=every),
        Sample("mask", (), (*pair(7, 5), _mask(7, 5))),
        Sample("mask, sum", ("sum",), (*pair(7, 5), _mask(7, 5)), compiled=every),
        Sample("mask that hides all", (), (*pair(3, 5), _mask(3, 5, share=0.0)), compiled=every),
        Sample("empty batch", (), pair(0, 5)),
    )


def _make(cls: Any, **options: Any) -> Callable[..., Any]:
    return lambda reduction="mean": cls(reduction=reduction, **options)


def _element_row(
    name: str,
    cls: Any,
    element: Element,
    samples: tuple[Sample, ...] | None = None,
    *,
    step: float = 1e-2,
    **options: Any,
) -> Row:
    shown = name
    return Row(
        shown, cls, _make(cls, **options), _reduced(element), ("x", "target", "mask", "weight"), samples or _samples(),
        (
            Mistake("wrong shape", lambda: cls(**options)(_zeros(4, 2), _zeros(4, 3)),
                    r"for a prediction \[4, 2\] expected targets of shape \[4, \d\], got \[4, 3\]"),
            Mistake("no batch axis", lambda: cls(**options)(_zeros(4, 2), _zeros(4)), r"expected targets .*got \[4\]"),
            Mistake("wrong reduction", lambda: cls(reduction="median"), r"expected reduction to be one of mean, sum, .*'median'",
                    ValueError),
        ) if shown == cls.__name__ else (),
        step=step,
    )  # fmt: skip


def _first(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """The same samples, of which only the first is compiled: the rest differs in ways that another row has."""
    return tuple(replace(sample, compiled=i == 0 and sample.compiled) for i, sample in enumerate(samples))


def _unit(*shape: int) -> Any:
    return lambda draw: draw.random(shape).astype(np.float32)


def _positive_half(*shape: int) -> Any:
    """Means, and variances from 0.5 on."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        second = 0.5 + rng.random(shape)
        return np.concatenate([rng.standard_normal(shape), second], -1).astype(np.float32)

    return draw


def _gaussian(loss: Any, p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    mean, second = p.chunk(2, -1)
    if loss.variance == "log":
        second = (second if loss.limits is None else second.clamp(*loss.limits)).exp()
    return F.gaussian_nll_loss(mean, t, second, full=loss.full, eps=loss.eps, reduction="none")


def _bce(loss: Any, p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    weight, positive = (
        None if value is None else torch.tensor(value, dtype=p.dtype)
        for value in (loss.element_weight, loss.pos_weight)
    )
    return F.binary_cross_entropy_with_logits(p, t, weight, pos_weight=positive, reduction="none")


def _two_hot(loss: Any, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    x = (torch.sign(t) * torch.log1p(t.abs()) if loss.symlog else t).clamp(loss.low, loss.high)
    place = (x - loss.low) / ((loss.high - loss.low) / (loss.bins - 1))
    low = place.floor().clamp(max=loss.bins - 2).long()
    share = (place - low)[..., None]
    q = F.one_hot(low, loss.bins) * (1 - share) + F.one_hot(low + 1, loss.bins) * share
    return -(q * z.log_softmax(-1)).sum(-1)


def _cross_entropy_rows_twin(loss: Any) -> Twin:
    def twin(
        params: dict[str, torch.Tensor], z: torch.Tensor, t: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        soft = t.is_floating_point()
        if mask is not None and loss.reduction == "none":
            return torch.where(mask, twin(params, z, t), torch.zeros(mask.shape, dtype=z.dtype))
        if mask is not None:  # the rows that count, alone
            return twin(params, z[mask], t[mask])
        rows, wanted = z.reshape(-1, z.shape[-1]), t.reshape(-1, z.shape[-1]) if soft else t.reshape(-1).long()
        weight = None if loss.class_weight is None else torch.tensor(loss.class_weight, dtype=z.dtype)
        if not len(rows):
            return rows.sum() if loss.reduction != "none" else rows.sum(-1).reshape(z.shape[:-1])
        value = F.cross_entropy(
            rows, wanted, weight, ignore_index=loss.ignore_index, label_smoothing=loss.label_smoothing,
            reduction=loss.reduction,
        )  # fmt: skip
        return value.reshape(z.shape[:-1]) if loss.reduction == "none" else value

    return twin


LABELS = (
    Sample("rank 2", (), ((7, 5), _labels(7, ignored=-100))),
    Sample("batch 1", (), ((1, 5), _labels(1))),
    Sample("rank 3", (), ((3, 4, 5), _labels(3, 4, ignored=-100))),
)
TOKENS = (
    Sample("tokens", (), ((3, 4, 5), _labels(3, 4, ignored=-100))),
    Sample("one token", (), ((1, 1, 5), _labels(1, 1))),
    Sample("sum", (None, -100, 0.0, "sum"), ((3, 4, 5), _labels(3, 4, ignored=-100))),
    Sample("none", (None, -100, 0.0, "none"), ((3, 4, 5), _labels(3, 4, ignored=-100))),
    Sample("mask", (), ((3, 4, 5), _labels(3, 4, ignored=-100), _mask(3, 4))),
    Sample("mask, sum", (None, -100, 0.1, "sum"), ((3, 4, 5), _labels(3, 4), _mask(3, 4)), compiled=False),
    Sample("mask, none", (None, -100, 0.0, "none"), ((3, 4, 5), _labels(3, 4), _mask(3, 4)), compiled=False),
    Sample("mask that hides all", (), ((2, 3, 5), _labels(2, 3), _mask(2, 3, share=0.0)), compiled=False),
    Sample("empty batch", (), ((0, 4, 5), _labels(0, 4))),
)
DISTRIBUTIONS = (
    Sample("rank 2", (), ((7, 5), _rows(7, 5))),
    Sample("rank 3", (), ((3, 4, 5), _rows(3, 4, 5))),
    Sample("sum", ("sum",), ((7, 5), _rows(7, 5))),
    Sample("none", ("none",), ((7, 5), _rows(7, 5))),
    Sample("mask", (), ((3, 4, 5), _rows(3, 4, 5), _mask(3, 4))),
    Sample("mask, sum", ("sum",), ((7, 5), _rows(7, 5), _mask(7)), compiled=False),
    Sample("mask, none", ("none",), ((7, 5), _rows(7, 5), _mask(7)), compiled=False),
    Sample("mask that hides all", (), ((3, 5), _rows(3, 5), _mask(3, share=0.0)), compiled=False),
    Sample("empty batch", (), ((0, 5), _rows(0, 5))),
)


def _cross_entropy_row(name: str, samples: tuple[Sample, ...], **options: Any) -> Row:
    return Row(
        f"CrossEntropyLoss, {name}", nn.CrossEntropyLoss, lambda: nn.CrossEntropyLoss(**options),
        _cross_entropy_rows_twin, ("x", "target", "lse", "weight"), _first(samples),
    )  # fmt: skip


WEIGHTS = [0.5, 1.0, 2.0, 1.5, 0.25]
GAUSSIAN = _samples(width=2)
VARIANCES = tuple(
    replace(sample, inputs=(_positive_half(*sample.inputs[1]), *sample.inputs[1:]))  # type: ignore[misc]
    for sample in GAUSSIAN
)
TWO_HOT = (
    Sample("rows", (), ((7, 9), (7,)), 4.0),
    Sample("batch 1", (), ((1, 9), (1,)), compiled=False),
    Sample("rank 3", (), ((3, 4, 9), (3, 4)), compiled=False),
    Sample("beyond the ends", (), ((5, 9), (5,)), 1e3, compiled=False),
    Sample("sum", ("sum",), ((7, 9), (7,)), compiled=False),
    Sample("none", ("none",), ((3, 4, 9), (3, 4))),
    Sample("mask", (), ((3, 4, 9), (3, 4), _mask(3, 4))),
    Sample("mask, none", ("none",), ((7, 9), (7,), _mask(7)), compiled=False),
    Sample("mask that hides all", (), ((3, 9), (3,), _mask(3, share=0.0)), compiled=False),
    Sample("empty batch", (), ((0, 9), (0,)), compiled=False),
)

ROWS: tuple[Row, ...] = (
    _element_row("MSELoss", nn.MSELoss, lambda _, p, t: F.mse_loss(p, t, reduction="none"), _samples(every=True)),
    _element_row("MSELoss, half", nn.MSELoss, lambda _, p, t: F.mse_loss(p, t, reduction="none"), _first(_samples()),
                 factor=0.5),
    _element_row("L1Loss", nn.L1Loss, lambda _, p, t: F.l1_loss(p, t, reduction="none"), step=KINKS),
    _element_row("SmoothL1Loss", nn.SmoothL1Loss, lambda _, p, t: F.smooth_l1_loss(p, t, reduction="none"), step=KINKS),
    _element_row(
        "SmoothL1Loss, beta", nn.SmoothL1Loss, lambda loss, p, t: F.smooth_l1_loss(p, t, reduction="none", beta=loss.beta),
        _first(_samples()),
        step=KINKS, beta=0.3,
    ),
    _element_row("HuberLoss", nn.HuberLoss, lambda _, p, t: F.huber_loss(p, t, reduction="none"), step=KINKS),
    _element_row(
        "HuberLoss, delta", nn.HuberLoss, lambda loss, p, t: F.huber_loss(p, t, reduction="none", delta=loss.delta),
        _first(_samples()),
        step=KINKS, delta=0.7,
    ),
    _element_row("GaussianNLLLoss", nn.GaussianNLLLoss, _gaussian, VARIANCES),
    _element_row("GaussianNLLLoss, log", nn.GaussianNLLLoss, _gaussian, _first(GAUSSIAN), variance="log"),
    _element_row("GaussianNLLLoss, full, limits", nn.GaussianNLLLoss, _gaussian, _first(GAUSSIAN[:4]), step=KINKS,
                 full=True, variance="log", limits=(-0.5, 0.75)),
    _element_row("BCEWithLogitsLoss", nn.BCEWithLogitsLoss, _bce, _samples(_unit)),
    _element_row("BCEWithLogitsLoss, weights", nn.BCEWithLogitsLoss, _bce,
                 (Sample("rank 2", (), ((7, 5), _unit(7, 5))), Sample("none", ("none",), ((7, 5), _unit(7, 5)))),
                 weight=WEIGHTS, pos_weight=[3.0]),
    _element_row("BCEWithLogitsLoss, large logits", nn.BCEWithLogitsLoss, _bce,
                 (Sample("rank 2", (), ((7, 5), _unit(7, 5)), 60.0),), pos_weight=WEIGHTS),
    _element_row("KLDivLoss", nn.KLDivLoss, lambda _, p, t: F.kl_div(p, t, reduction="none"), _samples(_unit)),
    _element_row("KLDivLoss, log", nn.KLDivLoss, lambda _, p, t: F.kl_div(p, t, reduction="none", log_target=True),
                 _first(_samples()), log_target=True),
    Row("TwoHotLoss", nn.TwoHotLoss, lambda *a: nn.TwoHotLoss(9, -3.0, 3.0, reduction=a[0] if a else "mean"),
        _reduced(_two_hot), ("x", "target", "mask", "weight"), TWO_HOT,
        (Mistake("a mask of another shape", lambda: nn.TwoHotLoss(9).forward(_zeros(2, 9), _zeros(2), np.ones(3, bool)),
                 r"TwoHotLoss: expected a boolean mask of shape \[2\], got bool \[3\]"),
         Mistake("wrong width", lambda: nn.TwoHotLoss(9)(_zeros(2, 8), _zeros(2)),
                 r"expected logits \[..., 9\] and targets \[...\], got \[2, 8\] and \[2\]"),
         Mistake("one bin", lambda: nn.TwoHotLoss(1), "bins to be an integer of at least 2, got 1", ValueError))),
    Row("TwoHotLoss, linear", nn.TwoHotLoss, lambda: nn.TwoHotLoss(9, -2.0, 5.0, symlog=False),
        _reduced(_two_hot), ("x", "target", "mask", "weight"), TWO_HOT[:2]),
    _cross_entropy_row("sum", LABELS, reduction="sum"),
    _cross_entropy_row("sum, everything", LABELS, reduction="sum", weight=WEIGHTS, label_smoothing=0.1),
    _cross_entropy_row("none", LABELS, reduction="none"),
    _cross_entropy_row("none, everything", LABELS, reduction="none", weight=WEIGHTS, label_smoothing=0.1),
    _cross_entropy_row("none, probabilities", DISTRIBUTIONS[:2], reduction="none", label_smoothing=0.1),
    Row("SequenceCrossEntropyLoss", nn.SequenceCrossEntropyLoss, nn.SequenceCrossEntropyLoss, _cross_entropy_rows_twin,
        ("x", "target", "lse", "weight"), TOKENS,
        (Mistake("no sequence", lambda: nn.SequenceCrossEntropyLoss()(_zeros(4, 3), np.zeros(4, np.int64)),
                 r"expected logits \[B, T, C\] and integer labels \[B, T\], got \[4, 3\]"),)),
    Row("SoftCrossEntropyLoss", nn.SoftCrossEntropyLoss, nn.SoftCrossEntropyLoss, _cross_entropy_rows_twin,
        ("x", "target", "lse", "weight"), DISTRIBUTIONS,
        (Mistake("labels", lambda: nn.SoftCrossEntropyLoss()(_zeros(4, 3), np.zeros(4, np.int64)),
                 r"expected probabilities of shape \[4, 3\], got integers \[4\]"),)),
)  # fmt: skip
