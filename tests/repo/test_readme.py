"""What the README shows works."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch.nn.functional as F

from noeira import nn
from noeira.nn import CompositionError, Linear, ReLU, Sequential
from tests.compare import Case, assert_accumulates, assert_central_differences, assert_dot_product, assert_torch
from tests.repo.test_manifests import ROOT


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", Path(ROOT, "README.md").read_text(encoding="utf-8"), re.DOTALL)


def block_with(text):
    return next(block for block in blocks("python") if text in block)


def test_a_module_of_your_own():
    names = {}
    exec(block_with("class ScaledTanh"), names)
    module = names["ScaledTanh"](3).init(seed=0).to(dtype="float64")
    module.a.val = np.array([1.0, -2.0, 0.5])
    x, dy = np.random.default_rng(0).normal(size=(2, 5, 3))
    y, saved = module.forward(x)
    np.testing.assert_allclose(y, np.tanh(x) * module.a.val)
    dx = module.vjp(saved, dy)
    np.testing.assert_allclose(dx, dy * module.a.val * (1 - np.tanh(x) ** 2))
    np.testing.assert_allclose(module.a.grd, (np.tanh(x) * dy).sum(axis=0))


def test_a_model_composed_of_modules():
    block = block_with("class GatedNet")
    assert len([line for line in block[block.index("class") :].splitlines() if line]) <= 15
    names = {}
    exec(block, names)
    net = names["GatedNet"](4, 6, 3)

    def twin(params, x):
        def linear(name, x):
            return x @ params[f"{name}.weight"] + params[f"{name}.bias"]

        h = linear("stem", x)
        for i in range(2):
            norm = F.layer_norm(h, (6,), params[f"blocks.{i}.0.weight"], params[f"blocks.{i}.0.bias"])
            h = h + F.gelu(linear(f"blocks.{i}.1", norm))
        return linear("head", h * linear("gate", x))

    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    case = Case("GatedNet", net.eval(), (x,), twin, step=1e-3)
    for gate in (assert_torch, assert_dot_product, assert_central_differences, assert_accumulates):
        gate(case)
    trained, labels = names["GatedNet"](4, 16, 2), (x[:, 0] > 0).astype(np.int32)
    nn.seed(0)
    losses, optimizer = [], nn.Adam(1e-2)
    for _ in range(60):
        trained.zero_grad()
        y, saved = trained.forward(x)
        loss, kept = nn.CrossEntropyLoss().forward(y, labels)
        trained.vjp(saved, nn.CrossEntropyLoss().vjp(kept))
        losses.append(float(loss))
        optimizer.step(trained)
    assert losses[-1] < 0.1 * losses[0]


def test_the_error_shown_is_the_error_raised():
    readme = Path(ROOT, "README.md").read_text(encoding="utf-8")
    with pytest.raises(CompositionError) as caught:
        Sequential(Linear(784, 256), ReLU(), Linear(128, 10))
    assert " ".join(str(caught.value).split()) in " ".join(readme.split())


def test_every_figure_names_its_script():
    lines = Path(ROOT, "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and "|---" not in line]
    figures = [row for row in rows if re.search(r"(?<![\w-])\d", row)]  # a number, not a name such as CIFAR-10
    assert len(figures) > 5
    for row in figures:
        assert re.search(r"`[^`]*(bench|make|examples)[^`]*`", row), row
        assert re.search(r"20\d\d-\d\d-\d\d", row), row


def test_the_net_of_the_readme_is_the_example():
    example = Path(ROOT, "examples/nn/mlp/mnist.py").read_text(encoding="utf-8")
    for line in ("LinearReLU(784, 256)", "LinearReLU(256, 128)", "Linear(128, 10)", "Adam(1e-3)", "batch_size=100"):
        assert line in example
        assert line in block_with("Trainer(net")
