"""CIFAR-10's recipes run end to end, on six files in the data set's format that are made here."""

import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from noeira.nn import CIFAR10
from noeira.nn.datasets import write_cifar_batch

EXAMPLES = Path(__file__).parents[2] / "examples" / "nn"
ROWS = 60


@pytest.fixture
def files(tmp_path, monkeypatch):
    """300 training and 60 test images, each class of a colour of its own."""
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 200, (10, 3, 1, 1))
    for name in (*CIFAR10.spec.train, *CIFAR10.spec.test):
        labels = rng.permutation(np.repeat(np.arange(10), ROWS // 10))
        images = colours[labels] + rng.integers(0, 56, (ROWS, 3, 32, 32))
        write_cifar_batch(tmp_path / name, images.astype(np.uint8), labels)
    monkeypatch.setattr(CIFAR10, "spec", replace(CIFAR10.spec, rows=ROWS))
    monkeypatch.setenv("NOEIRA_CIFAR10_DIR", str(tmp_path))


@pytest.mark.compiled
@pytest.mark.parametrize("recipe", ["conv", "resnet", "vit"])
def test_recipe(recipe, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["cifar10.py", "--quick", "--device", "cpu"])
    runpy.run_path(str(EXAMPLES / recipe / "cifar10.py"), run_name="__main__")
    printed = capsys.readouterr().out
    accuracy = re.search(r"test accuracy (\S+)%", printed)
    assert accuracy and 0 <= float(accuracy[1]) <= 100
    folder = Path(re.search(r"confusion matrix in (\S+)", printed)[1])
    assert {"confusion.png", "learning_curve.png", "metrics.csv"} <= {path.name for path in folder.iterdir()}
