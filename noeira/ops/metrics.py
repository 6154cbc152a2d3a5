"""What a loop records on the device: losses a step, totals over an evaluation."""

from __future__ import annotations

import numpy as np

from noeira.ops import control
from noeira.ops.dispatch import Array, emit, op


@op
def record_loss(record: Array, counters: Array, accumulated: Array, loss: Array, weight: Array) -> None:
    """Write a batch's mean loss and weight into row `cursor` of the record; add the weight to `accumulated`."""
    row = int(counters[control.CURSOR]) % len(record)
    record[row, control.LOG_LOSS] = loss
    record[row, control.LOG_WEIGHT] = weight
    accumulated[0] += weight


@record_loss.staged
def _(record: Array, counters: Array, accumulated: Array, loss: Array, weight: Array) -> None:
    emit("noeira.record_loss", [record, counters, accumulated, loss, weight], [])


@op
def accumulate_totals(totals: Array, logits: Array, targets: Array, loss: Array, weight: Array) -> None:
    """Add a batch's weighted loss, weight, correct predictions (first maximum wins) and rows to `totals`."""
    rows = logits.reshape(-1, logits.shape[-1])
    wanted = targets.reshape(-1) if targets.ndim < logits.ndim else targets.reshape(rows.shape).argmax(axis=-1)
    totals[control.EVAL_LOSS] += np.float64(loss) * np.float64(weight)
    totals[control.EVAL_WEIGHT] += weight
    totals[control.EVAL_CORRECT] += np.sum(rows.argmax(axis=-1) == wanted)
    totals[control.EVAL_ROWS] += len(rows)


@accumulate_totals.staged
def _(totals: Array, logits: Array, targets: Array, loss: Array, weight: Array) -> None:
    emit("noeira.accumulate_totals", [totals, logits, targets, loss, weight], [])
