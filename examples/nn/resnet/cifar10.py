"""ResNet-20 on CIFAR-10, with random crops and flips.

    make cifar10-resnet        or        python examples/nn/resnet/cifar10.py [--quick] [--seed 42] [--device auto]

Prints the test accuracy and draws the confusion matrix.
"""

import argparse

from noeira.nn import (
    CIFAR10,
    Adam,
    CropFlip,
    CrossEntropyLoss,
    ResNet,
    ResNetConfig,
    Trainer,
    WarmupCosine,
    confusion_matrix,
    draw_confusion,
)


def main() -> None:
    """Train, evaluate, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="one epoch of a tenth of the images")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()

    data = CIFAR10()
    train, test = (data.train[:5000], data.test[:1000]) if args.quick else (data.train, data.test)
    net = ResNet.from_config(ResNetConfig.resnet20())
    trainer = Trainer(
        net,
        loss=CrossEntropyLoss(),
        optimizer=Adam(1e-3, schedule=WarmupCosine(warmup=5, minimum=0.01)),
        augment=CropFlip(padding=4),
        device=args.device,
        seed=args.seed,
    )
    history = trainer.fit(train, test, epochs=1 if args.quick else args.epochs, batch_size=100)

    matrix = confusion_matrix(test.targets, trainer.predict(test), 10)
    if history.run_dir is not None:
        draw_confusion(matrix, data.test.class_names, history.run_dir / "confusion.png")
        print(f"learning curve and confusion matrix in {history.run_dir}")
    print(f"test accuracy {history.test_accuracy:.2%} after {history.seconds:.0f} s")


if __name__ == "__main__":
    main()
