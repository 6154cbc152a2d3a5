"""The trainer on a small problem: learning, determinism, uneven batches, files, interrupts, errors."""

import copy
import csv
import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from noeira.nn import (
    SGD,
    Adam,
    ArrayDataset,
    CrossEntropyLoss,
    Linear,
    LinearReLU,
    NonFiniteError,
    Sequential,
    ShapeError,
)
from noeira.nn.core.initializer import Deterministic
from noeira.nn.optimizer import WarmupCosine
from tests.nn.training.conftest import make_data, make_net

pytestmark = pytest.mark.compiled


def fingerprint(net):
    digest = hashlib.sha256()
    for role in ("val", "m", "v"):
        digest.update(net.arena().memory[role].numpy().tobytes())
    return digest.hexdigest()


def test_it_learns(trainer):
    t = trainer()
    history = t.fit(make_data(), make_data(60, seed=1), epochs=30, batch_size=16)
    assert history.epochs[-1].train_loss < 0.3 * history.epochs[0].train_loss
    assert history.test_accuracy > 0.9
    assert len(history.losses) == 30 * 6
    test = make_data(60, seed=1)
    assert t.evaluate(test)[1] == history.test_accuracy
    outputs = t.predict(test, batch_size=25)
    assert np.mean(outputs.argmax(-1) == test[1]) == history.test_accuracy
    np.testing.assert_allclose(outputs, t.model.eval()(test[0]), rtol=1e-4, atol=1e-5)


def test_one_seed_gives_the_same_bytes_and_another_does_not(trainer):
    prints = []
    for seed in (3, 3, 4):
        t = trainer(seed=seed)
        t.fit(make_data(), epochs=3, batch_size=16)
        prints.append(fingerprint(t.model))
    assert prints[0] == prints[1] != prints[2]


SCRIPT = """
import os, sys
if sys.argv[1] != "all":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from tests.nn.training.conftest import make_data, make_net
from tests.nn.training.test_trainer import fingerprint
from noeira.nn import Adam, CrossEntropyLoss, Trainer
net = make_net()
trainer = Trainer(net, loss=CrossEntropyLoss(), optimizer=Adam(1e-2), seed=3, run_dir=None, progress=False)
trainer.fit(make_data(), epochs=3, batch_size=16)
print(fingerprint(net), "noeira.runtime.lowering" in sys.modules)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_threads_do_not_change_a_bit_and_a_stored_program_builds_no_graph(trainer):
    t = trainer(seed=3)
    t.fit(make_data(), epochs=3, batch_size=16)
    root = Path(__file__).parents[3]
    for cores in ("all", "one"):
        result = subprocess.run(
            [sys.executable, "-c", SCRIPT, cores], cwd=root, capture_output=True, text=True, check=True, timeout=300
        )
        assert result.stdout.split() == [fingerprint(t.model), "False"]
        assert "compiling" not in result.stderr


@pytest.mark.parametrize("batch_size", [1, 7, 16, 89, 90, 1000])
def test_any_batch_size_sees_every_row_once(trainer, batch_size):
    t = trainer(optimizer=SGD(0.0))
    history = t.fit(make_data(), make_data(31, seed=1), epochs=1, batch_size=batch_size)
    expected, _ = t.evaluate(make_data())  # with lr 0 the mean over batches is the mean over rows
    assert history.epochs[0].train_loss == pytest.approx(expected, rel=1e-6)
    assert len(history.losses) == -(-90 // batch_size)


def test_batches_weigh_by_their_rows_in_the_gradient_too(trainer):
    """Accumulating batches of 32, 32 and 26 rows is one batch of 90."""
    prints = []
    for batch_size, accumulate in ((32, 3), (90, 1)):
        t = trainer(optimizer=SGD(0.1), seed=5)
        t.fit(make_data(), epochs=2, batch_size=batch_size, accumulate_grad_batches=accumulate, shuffle=False)
        prints.append(t.model.arena().memory["val"].numpy().copy())
    np.testing.assert_allclose(prints[0], prints[1], rtol=0, atol=2e-6)


def test_shuffling_visits_every_row_in_an_order_of_the_epoch(trainer):
    from noeira.nn.training.loop import Loop

    t = trainer()
    inputs, labels = make_data(50)
    t._prepare()
    loop = Loop(t.model, t.optimizer, t._counters, t._programs(ArrayDataset(inputs, labels), None),
                ArrayDataset(inputs, labels), batch_size=8)  # fmt: skip
    orders = []
    for _ in range(2):
        loop.begin_epoch()
        orders.append(loop._train.permutation.numpy().copy())
    for order in orders:
        assert sorted(order) == list(range(50))
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], np.arange(50))


def test_the_compiled_shuffle_is_the_references(trainer):
    from noeira import ops
    from noeira.nn.training.loop import Loop
    from noeira.ops import control

    t = trainer(seed=123)
    data = ArrayDataset(*make_data(41))
    t._prepare()
    loop = Loop(t.model, t.optimizer, t._counters, t._programs(data, None), data, batch_size=8)
    loop.begin_epoch()
    counters = np.zeros(control.COUNTERS, np.int64)
    counters[[control.SEED, control.EPOCH]] = (123, 1)
    order = np.zeros(41, np.int32)
    ops.shuffle(order, counters)
    np.testing.assert_array_equal(loop._train.permutation.numpy(), order)


def test_without_shuffle_the_order_is_the_data_sets(trainer):
    t = trainer(optimizer=SGD(0.0))
    history = t.fit(make_data(), epochs=1, batch_size=10, shuffle=False)
    inputs, labels = make_data()
    for i, loss in enumerate(history.losses):
        rows = slice(10 * i, 10 * i + 10)
        assert loss == pytest.approx(float(CrossEntropyLoss()(t.model(inputs[rows]), labels[rows])), rel=1e-5)


def test_the_record_holds_rate_norm_and_speed(trainer):
    t = trainer(optimizer=Adam(1e-2, schedule=WarmupCosine(per="step", warmup=6)))
    history = t.fit(make_data(), epochs=2, batch_size=16)
    first, last = history.epochs
    assert first.lr == pytest.approx(1e-2)
    assert 0 < last.lr < 1e-2
    assert first.grad_norm > 0
    assert first.samples_per_second == pytest.approx(90 / first.seconds)
    assert [record.epoch for record in history.epochs] == [1, 2]
    assert [record.step for record in history.epochs] == [6, 12]


def test_fit_goes_on_where_it_stopped(trainer):
    once, twice = trainer(), trainer()
    once.fit(make_data(), epochs=4, batch_size=16)
    twice.fit(make_data(), epochs=2, batch_size=16)
    twice.fit(make_data(), epochs=2, batch_size=16)
    assert fingerprint(once.model) == fingerprint(twice.model)


def test_a_new_trainer_goes_on_with_the_models_moments(trainer):
    net = make_net()
    trainer(net).fit(make_data(), epochs=1, batch_size=90)
    assert net.arena().applied == 1
    trainer(net).fit(make_data(), epochs=1, batch_size=90)
    assert net.arena().applied == 2
    trainer(net, optimizer=SGD(0.1, momentum=0.9)).fit(make_data(), epochs=1, batch_size=90)
    assert net.arena().applied == 1
    assert not net.arena().memory["v"].numpy().any()


def test_given_weights_are_kept(trainer):
    net = make_net().init(Deterministic())
    before = net.arena().memory["val"].numpy().copy()
    trainer(net, optimizer=SGD(0.0), seed=7).fit(make_data(), epochs=1, batch_size=90)
    np.testing.assert_array_equal(net.arena().memory["val"].numpy(), before)


def test_only_new_layers_are_drawn(trainer):
    old = make_net().init(Deterministic())
    trunk = old[0].weight.val.copy()
    net = Sequential(old[0], old[1], Linear(9, 3))
    t = trainer(net, optimizer=SGD(0.0), seed=7)
    t.fit(make_data(), epochs=1, batch_size=90)
    np.testing.assert_array_equal(net[0].weight.val, trunk)
    assert net[2].weight.val.any()


@pytest.mark.parametrize("accumulate", [1, 2, 4, 100])
def test_accumulation_steps_on_the_last_batch_too(trainer, accumulate):
    net = make_net()
    trainer(net).fit(make_data(), epochs=2, batch_size=16, accumulate_grad_batches=accumulate)
    assert net.arena().applied == 2 * -(-6 // accumulate)


def test_files(trainer, tmp_path):
    t = trainer(run_dir=tmp_path / "runs")
    history = t.fit(make_data(), make_data(30, seed=1), epochs=3, batch_size=16)
    assert history.run_dir is not None
    assert history.run_dir.parent == tmp_path / "runs"
    with (history.run_dir / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["train/loss"]) for row in rows] == [record.train_loss for record in history.epochs]
    assert [float(row["test/accuracy"]) for row in rows] == [record.test_accuracy for record in history.epochs]
    assert (history.run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    again = t.fit(make_data(), epochs=1, batch_size=16)
    assert again.run_dir != history.run_dir


def test_fast_dev_run_takes_one_batch_and_writes_nothing(trainer, tmp_path):
    t = trainer(run_dir=tmp_path / "runs", fast_dev_run=True)
    history = t.fit(make_data(), make_data(30, seed=1), epochs=2, batch_size=16)
    assert len(history.losses) == 2
    assert history.test_accuracy is not None
    assert not (tmp_path / "runs").exists()


def test_progress_lines(trainer, capsys):
    trainer(progress=True).fit(make_data(), make_data(30, seed=1), epochs=2, batch_size=16)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("epoch 1  train/loss ")
    assert "samples/s" in lines[1]
    assert err.splitlines()[-1].startswith("noeira ")
    assert " | cpu | 32-true | 391 parameters | MAX 26.7" in err


def test_ctrl_c_stops_after_the_step_and_writes_the_files(trainer, tmp_path):
    t = trainer(run_dir=tmp_path)

    def press():
        time.sleep(0.4)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=press)
    thread.start()
    history = t.fit(make_data(), epochs=100_000, batch_size=2)
    thread.join()
    assert history.interrupted
    assert history.epochs
    assert (history.run_dir / "metrics.csv").exists()
    assert (history.run_dir / "learning_curve.png").exists()
    assert signal.getsignal(signal.SIGINT) is before
    assert t.model.arena().applied == len(history.losses)
    assert np.isfinite(t.model.arena().memory["val"].numpy()).all()


def test_float64_training(trainer):
    net = make_net().init(seed=0).to(dtype="float64")
    history = trainer(net).fit(make_data(), epochs=2, batch_size=16)
    single = trainer().fit(make_data(), epochs=2, batch_size=16)
    np.testing.assert_allclose(history.losses, single.losses, rtol=1e-4)
    assert net[0].weight.val.dtype == np.float64


# ---- errors -------------------------------------------------------------------------------------------------------


def test_wrong_inputs_name_the_layer(trainer):
    inputs, labels = make_data()
    with pytest.raises(
        ShapeError, match=r"module '0' \(LinearReLU\(12, 16\)\): expected .*\[batch, ..., 12\], got \['batch', 11\]"
    ):
        trainer().fit((inputs[:, :11], labels), batch_size=8)


def test_wrong_labels_are_refused_before_any_step(trainer):
    inputs, labels = make_data()
    labels[17] = 3
    t = trainer()
    with pytest.raises(ShapeError, match=r"expected class labels 0..2 .* in data set 'train', got 3 in row 17"):
        t.fit((inputs, labels), batch_size=8)
    labels[17] = -1
    with pytest.raises(ShapeError, match="got -1 in row 17"):
        t.fit((inputs, labels), batch_size=8)
    labels[17] = -100
    t.fit((inputs, labels), batch_size=8)


@pytest.mark.parametrize("name", ["epochs", "batch_size", "accumulate_grad_batches"])
@pytest.mark.parametrize("value", [0, -1, 1.5, None])
def test_sizes_are_checked(trainer, name, value):
    with pytest.raises(ValueError, match=f"expected {name} to be an integer >= 1, got"):
        trainer().fit(make_data(), **{name: value})


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1])
def test_a_seed_fits_64_bits(trainer, seed):
    with pytest.raises(ValueError, match=f"expected a seed that fits 64 bits, got {seed}"):
        trainer(seed=seed)


def test_a_copied_trainer_goes_on_as_the_original(trainer):
    one = trainer()
    one.fit(make_data(), epochs=1, batch_size=16)
    other = copy.deepcopy(one)
    for t in (one, other):
        t.fit(make_data(), epochs=1, batch_size=16)
    assert fingerprint(one.model) == fingerprint(other.model)


def test_an_empty_data_set_is_refused(trainer):
    with pytest.raises(ShapeError, match="'train' is empty"):
        trainer().fit((np.zeros((0, 12), np.float32), np.zeros(0, np.int32)))


def test_a_batch_that_is_not_finite_is_named(trainer):
    inputs, labels = make_data()
    inputs[40, 3] = np.nan
    with pytest.raises(NonFiniteError, match=r"the loss became nan in epoch 1, batch 5: .* the batch itself \(row 0"):
        trainer(log_every=1).fit((inputs, labels), batch_size=8, shuffle=False)


def test_the_first_layer_that_overflows_is_named(trainer):
    net = make_net().init(seed=0)
    net[1].weight.val = np.full((16, 9), 3e38, np.float32)
    with pytest.raises(NonFiniteError, match=r"the output of module '1' \(LinearGELU\(16, 9\)\)"):
        trainer(net, debug=True).fit(make_data(), batch_size=8)


def test_a_parameter_that_is_not_finite_is_named(trainer):
    net = make_net().init(seed=0)
    net[2].bias.val = np.array([0, np.inf, 0], np.float32)
    with pytest.raises(NonFiniteError, match=r"parameter '2\.bias'"):
        trainer(net, debug=True).fit(make_data(), batch_size=8)


def test_a_gradient_that_is_not_finite_skips_the_step_and_is_reported(trainer, caplog):
    """The loss is finite; dz W^T of the last layer overflows in the layer below."""
    net = make_net().init(seed=0)
    weight = np.zeros((9, 3), np.float32)
    weight[:, 0], weight[:, 1] = 3e38, -3e38
    net[1].weight.val = np.zeros((16, 9), np.float32)
    net[1].bias.val = np.full(9, -1e-30, np.float32)  # gelu(-1e-30) = -5e-31: logits stay moderate
    net[2].weight.val = weight
    before = {name: param.val.copy() for name, param in net.named_parameters().items()}
    t = trainer(net, optimizer=Adam(1e-2))
    with caplog.at_level(logging.WARNING, "noeira.training"):
        history = t.fit(make_data(), epochs=1, batch_size=45)
    assert history.epochs[0].skipped == 2
    assert t.skipped == 2
    assert net.arena().applied == 0
    assert "2 steps of epoch 1 skipped: non-finite gradient, first in '0.weight'" in caplog.text or "'1." in caplog.text
    for name, param in net.named_parameters().items():
        np.testing.assert_array_equal(param.val, before[name])
        assert not param.m.any()


def test_mixed_up_data_is_refused(trainer):
    with pytest.raises(ShapeError, match=r"expected an ArrayDataset or \(inputs, targets\)"):
        trainer().fit([1, 2, 3])


def test_freezing_keeps_a_subtree(trainer):
    net = Sequential(LinearReLU(12, 16), Linear(16, 3)).init(seed=0)
    net[0].freeze()
    before = net[0].weight.val.copy(), net[1].weight.val.copy()
    trainer(net).fit(make_data(), epochs=2, batch_size=16)
    np.testing.assert_array_equal(net[0].weight.val, before[0])
    assert not np.array_equal(net[1].weight.val, before[1])
