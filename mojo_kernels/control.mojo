"""Layout of control memory; the same positions as `noeira/ops/control.py`, which explains them."""

# counters (int64)
comptime SEED = 0
comptime STEP = 1
comptime STREAM = 2
comptime CURSOR = 3
comptime EPOCH = 4
comptime APPLIED = 5
comptime SKIPPED = 6
comptime BAD_INDEX = 7
comptime LR_BASE = 8

# columns of the record (float32)
comptime LOG_LOSS = 0
comptime LOG_WEIGHT = 1
comptime LOG_NORM = 2
comptime LOG_LR = 3
comptime LOG_SKIPPED = 4

# totals of an evaluation (float64)
comptime EVAL_LOSS = 0
comptime EVAL_WEIGHT = 1
comptime EVAL_CORRECT = 2
comptime EVAL_ROWS = 3

# hyper-parameters (float64)
comptime BETA1 = 0
comptime BETA2 = 1
comptime EPS = 2
comptime WEIGHT_DECAY = 3
comptime CLIP_NORM = 4
comptime CLIP_VALUE = 5
comptime CLEAR = 6
comptime DECOUPLED = 7
comptime DAMPENING = 8
comptime NESTEROV = 9
