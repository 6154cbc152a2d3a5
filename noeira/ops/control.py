"""Layout of control memory: the numbers a training loop keeps on the device, so that a step needs no host value.

The kernels use the same positions (`mojo_kernels/control.mojo`); a test compares the two files.
"""

from __future__ import annotations

SEED, STEP, STREAM, CURSOR, EPOCH, APPLIED, SKIPPED, BAD_INDEX, LR_BASE = range(9)
"""Positions in `counters` (int64).

Seed of all draws; batches ever seen; 0 (the three together are the root key of random draws, `ops.random`); batch of
this pass; epoch; optimizer steps applied (Adam's t); steps skipped; arena position of the first non-finite gradient
element (-1: none); value of APPLIED at which the learning-rate table begins.
"""

COUNTERS = 9

LOG_LOSS, LOG_WEIGHT, LOG_NORM, LOG_LR, LOG_SKIPPED = range(5)
"""Columns of `record` (float32 [batches, 5]), one row a batch: mean loss, its weight, and on the batches after
which the optimizer stepped the gradient norm before clipping, the learning rate, and 1 where it skipped."""

LOG_COLUMNS = 5

EVAL_LOSS, EVAL_WEIGHT, EVAL_CORRECT, EVAL_ROWS = range(4)
"""Positions in `totals` (float64): sum of weighted losses, of weights, of correct predictions, of rows."""

EVAL_TOTALS = 4

BETA1, BETA2, EPS, WEIGHT_DECAY, CLIP_NORM, CLIP_VALUE, CLEAR, DECOUPLED, DAMPENING, NESTEROV = range(10)
"""Positions in `hyper` (float64). SGD's momentum stands at BETA1; a limit of 0 is no limit; CLEAR zeroes the
gradients in the same pass."""

HYPER = 10
