"""One model, one data set, one set of compiled programs for all tests of the trainer."""

import numpy as np
import pytest

from noeira.nn import Adam, CrossEntropyLoss, Linear, LinearGELU, LinearReLU, Sequential, Trainer


def make_net():
    return Sequential(LinearReLU(12, 16), LinearGELU(16, 9), Linear(9, 3))


def make_data(rows=90, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, rows)
    centres = np.random.default_rng(99).normal(size=(3, 12))
    inputs = centres[labels] + rng.normal(size=(rows, 12))
    return inputs.astype(np.float32), labels.astype(np.int32)


@pytest.fixture
def trainer(tmp_path):
    def make(net=None, optimizer=None, **options):
        options = {"seed": 0, "run_dir": None, "progress": False, "device": "cpu", **options}
        return Trainer(net or make_net(), loss=CrossEntropyLoss(), optimizer=optimizer or Adam(1e-2), **options)

    return make
