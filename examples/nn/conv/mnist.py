"""A small convolutional net on MNIST, or with --fashion on Fashion-MNIST.

    make mnist-conv        or        python examples/nn/conv/mnist.py [--fashion] [--quick] [--seed 0] [--device auto]

Prints the test accuracy (99 % or more on MNIST in 3 epochs, 91 % or more on Fashion-MNIST in 6) and draws the
confusion matrix.
"""

import argparse

from noeira.nn import (
    MNIST,
    Adam,
    ConvNet,
    ConvNetConfig,
    CrossEntropyLoss,
    FashionMNIST,
    Trainer,
    WarmupCosine,
    confusion_matrix,
    draw_confusion,
)


def main() -> None:
    """Train, evaluate, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion", action="store_true", help="Fashion-MNIST in place of MNIST")
    parser.add_argument("--epochs", type=int, help="3, for Fashion-MNIST 6")
    parser.add_argument("--quick", action="store_true", help="one epoch of a tenth of the images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    epochs = 1 if args.quick else args.epochs or (6 if args.fashion else 3)

    data = FashionMNIST() if args.fashion else MNIST()
    train, test = (data.train[:6000], data.test[:1000]) if args.quick else (data.train, data.test)
    net = ConvNet.from_config(ConvNetConfig.mnist())  # 4 convolutions of 3x3 with BatchNorm, 2 linear maps
    optimizer = Adam(2e-3, schedule=WarmupCosine(warmup=50, minimum=0.01, per="step"))
    trainer = Trainer(net, loss=CrossEntropyLoss(), optimizer=optimizer, device=args.device, seed=args.seed)
    history = trainer.fit(train, test, epochs=epochs, batch_size=100)

    matrix = confusion_matrix(test.targets, trainer.predict(test), 10)
    if history.run_dir is not None:
        draw_confusion(matrix, data.test.class_names, history.run_dir / "confusion.png")
        print(f"learning curve and confusion matrix in {history.run_dir}")
    print(f"test accuracy {history.test_accuracy:.2%} after {history.seconds:.0f} s")


if __name__ == "__main__":
    main()
