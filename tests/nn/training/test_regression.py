"""Training against numbers: no accuracy, losses as NumPy has them, PyTorch's parameters after the same steps."""

import numpy as np
import pytest
import torch

from noeira.nn import SGD, BCEWithLogitsLoss, GaussianNLLLoss, Linear, LinearTanh, MSELoss, Sequential, Trainer

ROWS, BATCH, LR = 50, 16, 0.05


def _data(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((rows, 5)).astype(np.float32)
    return x, (x @ draw.standard_normal((5, 2)) + 0.1).astype(np.float32)


def _trainer(loss: object, width: int = 2) -> Trainer:
    net = Sequential(LinearTanh(5, 8), Linear(8, width)).init(seed=0)
    return Trainer(net, loss=loss, optimizer=SGD(LR), seed=0, run_dir=None, progress=False, device="cpu")  # type: ignore[arg-type]


@pytest.mark.compiled
def test_regression_follows_pytorch_and_reports_no_accuracy() -> None:
    x, t = _data()
    trainer = _trainer(MSELoss())
    params = {
        name: torch.tensor(np.array(p.val), requires_grad=True) for name, p in trainer.model.named_parameters().items()
    }
    history = trainer.fit((x, t), (x, t), epochs=3, batch_size=BATCH, shuffle=False)
    optimizer = torch.optim.SGD(params.values(), LR)
    for _ in range(3):
        for start in range(0, ROWS, BATCH):
            part = slice(start, start + BATCH)
            hidden = torch.tanh(torch.tensor(x[part]) @ params["0.weight"] + params["0.bias"])
            loss = torch.nn.functional.mse_loss(hidden @ params["1.weight"] + params["1.bias"], torch.tensor(t[part]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, param in trainer.model.named_parameters().items():
        np.testing.assert_allclose(param.val, params[name].detach().numpy(), rtol=1e-5, atol=1e-6)
    last = history.epochs[-1]
    assert last.test_accuracy is None and history.test_accuracy is None
    assert last.test_loss == pytest.approx(float(np.mean((trainer.model.eval()(x) - t) ** 2)), rel=1e-5)
    assert "accuracy" not in str(last) and "test/loss" in str(last)
    assert trainer.evaluate((x, t)) == (pytest.approx(last.test_loss, rel=1e-6), None)


@pytest.mark.compiled
def test_a_predicted_variance_is_learnt() -> None:
    x, t = _data(200)
    noisy = t + np.random.default_rng(1).normal(0, 0.5, t.shape).astype(np.float32)
    trainer = _trainer(GaussianNLLLoss(variance="log", limits=(-10.0, 4.0)), width=4)
    history = trainer.fit((x, noisy), epochs=40, batch_size=BATCH)
    assert history.epochs[-1].train_loss < history.epochs[0].train_loss - 0.3


def test_targets_of_another_shape_are_refused_before_any_step() -> None:
    x, t = _data()
    with pytest.raises(ValueError, match=r"MSELoss: for a prediction .*2\] expected targets of shape .*2\], got"):
        _trainer(MSELoss()).fit((x, t[:, 0]), epochs=1)


def test_a_loss_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a loss that is one number, got MSELoss\(reduction='none'\)"):
        _trainer(MSELoss("none"))


@pytest.mark.parametrize("pos_weight", [None, 3.0])
def test_gradients_of_confident_logits_keep_their_digits(pos_weight: float | None) -> None:
    logits = np.array([[-200, -80, -20, 20, 80, 200]], np.float32)
    share = 1 / (np.exp(np.abs(logits), dtype=np.float64) + 1)  # of the unlikely answer
    loss = BCEWithLogitsLoss(reduction="sum", pos_weight=pos_weight)
    for target in (0.0, 1.0):
        _, saved = loss.forward(logits, np.full_like(logits, target))
        likely = np.where(logits > 0, 1 - share, share)
        want = (pos_weight or 1.0) * -np.where(logits > 0, share, 1 - share) if target else likely
        np.testing.assert_allclose(loss.vjp(saved), want, rtol=1e-5, atol=1e-37)
