"""A memory map trains as the same array on the device does, with few of its rows in memory and no thread left."""

import threading

import numpy as np
import pytest

from noeira.nn import ArrayDataset, NonFiniteError
from noeira.nn.training.batches import Batches
from tests.nn.training.conftest import make_data

pytestmark = pytest.mark.compiled


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "noeira-prefetch"]


@pytest.fixture
def mapped(tmp_path):
    def make(rows=90, seed=0):
        inputs, labels = make_data(rows, seed)
        np.save(tmp_path / f"{rows}-{seed}.npy", inputs)
        return np.load(tmp_path / f"{rows}-{seed}.npy", mmap_mode="r"), labels

    return make


@pytest.mark.parametrize("batch_size", [1, 16, 90, 1000])
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"accumulate_grad_batches": 3}], ids=str)
def test_every_loss_and_weight_is_the_resident_ones(trainer, mapped, batch_size, options):
    runs = []
    for data, test in ((make_data(), make_data(31, seed=1)), (mapped(), mapped(31, seed=1))):
        t = trainer(seed=7)
        history = t.fit(data, test, epochs=2, batch_size=batch_size, **options)
        runs.append((history.losses, history.epochs[-1].test_loss, t.model.arena().memory["val"].numpy().copy()))
    (losses, test_loss, values), streamed = runs
    assert losses == streamed[0] and test_loss == streamed[1]
    assert np.array_equal(values, streamed[2])


def test_evaluation_and_prediction_are_the_resident_ones(trainer, mapped):
    t = trainer()
    t.fit(mapped(), epochs=1, batch_size=16)
    assert t.evaluate(mapped(), batch_size=25) == t.evaluate(make_data(), batch_size=25)
    assert np.array_equal(t.predict(mapped(), batch_size=25), t.predict(make_data(), batch_size=25))


def test_only_a_batch_is_on_the_device(trainer, mapped):
    inputs, labels = mapped()
    for data, rows in (((inputs, labels), 16), ((np.array(inputs), labels), 90)):
        batches = Batches.of(ArrayDataset(*data), 16, trainer().device)
        assert batches.inputs.shape == (rows, 12) and batches.targets.shape == (rows,)


def test_a_batch_that_is_not_finite_is_named(trainer, mapped, tmp_path):
    inputs = np.array(mapped()[0])
    inputs[40, 3] = np.nan
    np.save(tmp_path / "x.npy", inputs)
    bad = np.load(tmp_path / "x.npy", mmap_mode="r"), make_data()[1]
    with pytest.raises(NonFiniteError, match=r"the loss became nan in epoch 1, batch 5: .* the batch itself \(row 0"):
        trainer(log_every=1).fit(bad, batch_size=8, shuffle=False)


def test_an_error_of_the_disk_ends_the_fit(trainer, mapped):
    class Failing(np.memmap):
        def __getitem__(self, key):
            if isinstance(key, np.ndarray) and 70 in key:
                raise OSError("the disk is gone")
            return super().__getitem__(key)

    inputs, labels = mapped()
    t = trainer()
    with pytest.raises(OSError, match="the disk is gone"):
        t.fit((inputs.view(Failing), labels), batch_size=16, shuffle=False)
    assert t.model.arena().applied == 4  # batches 0 to 3 were steps
    t.fit((inputs, labels), batch_size=16)
