"""MNIST with a multilayer perceptron: 784-256-128-10, five epochs of Adam.

    make mnist        or        python examples/nn/mlp/mnist.py [--seed 0] [--epochs 5] [--device auto]

Prints the test accuracy (97.5 % or more) and writes a picture of some digits with the model's predictions.
"""

import argparse
from pathlib import Path

import numpy as np

from noeira.nn import MNIST, Adam, CrossEntropyLoss, Flatten, Linear, LinearReLU, Sequential, Trainer


def main() -> None:
    """Train, evaluate, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()

    data = MNIST()  # images [N, 1, 28, 28] of bytes, labels [N]; scaled to [0, 1] when a batch is gathered

    net = Sequential(
        Flatten(),  # (B, 784)
        LinearReLU(784, 256),  # (B, 256), GEMM + bias + ReLU in one kernel
        LinearReLU(256, 128),  # (B, 128)
        Linear(128, 10),  # (B, 10) logits
    )
    trainer = Trainer(net, loss=CrossEntropyLoss(), optimizer=Adam(1e-3), device=args.device, seed=args.seed)
    history = trainer.fit(data.train, data.test, epochs=args.epochs, batch_size=100)

    images, labels = data.test[:32].arrays()
    predictions = np.argmax(net.eval()(images), axis=-1)  # NumPy in, NumPy out: nothing is compiled for this
    if history.run_dir is not None:
        draw(images, labels, predictions, history.run_dir / "digits.png")
    print(f"test accuracy {history.test_accuracy:.2%}")


def draw(images: np.ndarray, labels: np.ndarray, predictions: np.ndarray, path: Path) -> None:
    """Draw the digits in a grid, each under its prediction; wrong ones in red."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: pip install 'noeira[logging]' brings matplotlib")
        return
    figure = Figure(figsize=(8, 4.6), dpi=120, layout="constrained")
    for axes, image, label, prediction in zip(figure.subplots(4, 8).flat, images, labels, predictions, strict=True):
        axes.imshow(image[0], cmap="gray_r")
        axes.set_title(str(prediction), color="black" if prediction == label else "red", fontsize=10)
        axes.axis("off")
    figure.savefig(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
