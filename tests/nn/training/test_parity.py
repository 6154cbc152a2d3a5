"""Training follows PyTorch: the same weights and batches give the same losses."""

import numpy as np
import pytest
import torch

from noeira.nn import (
    SGD,
    Adam,
    AdamW,
    ArrayDataset,
    CrossEntropyLoss,
    Linear,
    LinearGELU,
    LinearReLU,
    Sequential,
    Trainer,
)

STEPS, BATCH = 200, 100


def problem(rows, width, classes, dtype):
    rng = np.random.default_rng(7)
    labels = rng.integers(0, classes, rows)
    centres = rng.random((classes, width))
    inputs = np.clip(0.3 * centres[labels] + 0.7 * rng.random((rows, width)), 0, 1)
    wrong = rng.random(rows) < 0.15  # so that the loss stays well above float32's rounding of it
    return inputs.astype(dtype), np.where(wrong, rng.integers(0, classes, rows), labels).astype(np.int32)


def torch_twin(net, act):
    modules = []
    for layer in net:
        twin = torch.nn.Linear(layer.in_features, layer.out_features, dtype=torch.from_numpy(layer.weight.val).dtype)
        with torch.no_grad():
            twin.weight.copy_(torch.from_numpy(layer.weight.val.T.copy()))
            twin.bias.copy_(torch.from_numpy(layer.bias.val.copy()))
        modules += [twin, act()]
    return torch.nn.Sequential(*modules[:-1])


def torch_losses(twin, optimizer, inputs, labels, batches, clip=None):
    losses = []
    for rows in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            twin(torch.from_numpy(inputs[rows])), torch.from_numpy(labels[rows]).long()
        )
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(twin.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


@pytest.mark.compiled
def test_200_float32_steps_follow_pytorch():
    """784-256-128-10 with Adam: losses within 1e-4 relative."""
    inputs, labels = problem(STEPS * BATCH, 784, 10, np.float32)
    net = Sequential(LinearReLU(784, 256), LinearReLU(256, 128), Linear(128, 10)).init(seed=0)
    twin = torch_twin(net, torch.nn.ReLU)
    batches = np.arange(STEPS * BATCH).reshape(STEPS, BATCH)
    expected = torch_losses(twin, torch.optim.Adam(twin.parameters(), 1e-3), inputs, labels, batches)
    trainer = Trainer(net, loss=CrossEntropyLoss(), optimizer=Adam(1e-3), run_dir=None, progress=False, device="cpu")
    history = trainer.fit(ArrayDataset(inputs, labels), epochs=1, batch_size=BATCH, shuffle=False)
    np.testing.assert_allclose(history.losses, expected, rtol=1e-4)
    assert expected[-20:].mean() < 0.5 * expected[0]


OPTIMIZERS = {
    "adam": (lambda: Adam(1e-2, weight_decay=0), lambda p: torch.optim.Adam(p, 1e-2), None),
    "adamw": (lambda: AdamW(1e-2, (0.8, 0.95), 1e-6, weight_decay=0.1), None, None),
    "sgd": (lambda: SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), None),
    "nesterov": (
        lambda: SGD(0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
        None,
    ),
    "clipped": (lambda: Adam(1e-2, clip_norm=0.1), lambda p: torch.optim.Adam(p, 1e-2), 0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_200_float64_reference_steps_follow_pytorch(name):
    """The NumPy path against float64 PyTorch: 1e-10."""
    make, make_torch, clip = OPTIMIZERS[name]
    inputs, labels = problem(400, 20, 5, np.float64)
    net = Sequential(LinearGELU(20, 32), LinearGELU(32, 16), Linear(16, 5)).init(seed=0).to(dtype="float64")
    twin = torch_twin(net, torch.nn.GELU)
    if make_torch is None:  # decay on weights, not on biases
        groups = [
            {"params": [p for p in twin.parameters() if p.ndim == 2], "weight_decay": 0.1},
            {"params": [p for p in twin.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ]
        torch_optimizer = torch.optim.AdamW(groups, 1e-2, (0.8, 0.95), 1e-6)
    else:
        torch_optimizer = make_torch(twin.parameters())
    batches = [np.random.default_rng(step).choice(400, 50, replace=False) for step in range(STEPS)]
    expected = torch_losses(twin, torch_optimizer, inputs, labels, batches, clip)
    loss, optimizer, losses = CrossEntropyLoss(), make(), []
    for rows in batches:
        net.zero_grad()
        prediction, saved = net.forward(inputs[rows])
        value, kept = loss.forward(prediction, labels[rows])
        net.vjp(saved, loss.vjp(kept))
        optimizer.step(net)
        losses.append(float(value))
    # relative to the first loss: late losses are small differences of large numbers
    np.testing.assert_allclose(losses, expected, rtol=1e-10, atol=1e-10 * expected[0])
    for layer, twin_layer in zip(net, list(twin)[::2], strict=True):
        np.testing.assert_allclose(layer.weight.val, twin_layer.weight.detach().numpy().T, rtol=1e-8, atol=1e-10)
