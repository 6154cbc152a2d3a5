"""The examples' recipes in PyTorch: the same nets, data, batches, optimizers and schedules, for accuracy and seconds.

python -m bench.recipes mnist-conv | fashion-conv | fashion-resnet | fashion-vit | gpt  [--seed 0]

Weights are PyTorch's own draws, so figures agree in kind and not in digits; BatchNorm, dropout and the rest have the
examples' settings.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np

from bench.cases import gpt
from bench.environment import cores
from noeira.nn import MNIST, FashionMNIST, TinyShakespeare


def _conv_net(nn: Any) -> Any:
    layers: list[Any] = []
    before = 1
    for stage in ((32, 32), (64, 64)):
        for channels in stage:
            layers += [nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2))
    head = [nn.Dropout(0.25), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


def _resnet20(nn: Any) -> Any:
    class Block(nn.Module):
        def __init__(self, before: int, channels: int, stride: int) -> None:
            super().__init__()
            self.branch = nn.Sequential(
                nn.Conv2d(before, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
                nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels),
            )  # fmt: skip
            self.skip = nn.Identity()
            if stride != 1 or before != channels:
                self.skip = nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.branch(x) + self.skip(x))

    layers: list[Any] = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for stage, channels in enumerate((16, 32, 64)):
        for index in range(3):
            layers.append(Block(before, channels, 2 if stage and not index else 1))
            before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _vit(nn: Any, layers: int = 4, width: int = 64, heads: int = 4, tokens: int = 49) -> Any:
    import torch

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, width, 4, 4)
            self.positions = nn.Parameter(0.02 * torch.randn(tokens, width))

        def forward(self, x: Any) -> Any:
            return self.conv(x).flatten(2).mT + self.positions

    class Mean(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean(1)

    block = nn.TransformerEncoderLayer(
        width, heads, 2 * width, 0.0, lambda x: nn.functional.gelu(x, approximate="tanh"), norm_first=True,
        batch_first=True,
    )  # fmt: skip
    stack = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
    return nn.Sequential(Patches(), stack, Mean(), nn.Linear(width, 10))


RECIPES = {
    "mnist-conv": (MNIST, _conv_net, 3, 2e-3, 0.0, 50),
    "fashion-conv": (FashionMNIST, _conv_net, 6, 2e-3, 0.0, 50),
    "fashion-resnet": (FashionMNIST, _resnet20, 5, 2e-3, 0.0, 100),
    "fashion-vit": (FashionMNIST, _vit, 8, 1e-3, 0.05, 200),
}
"""Data set, net, epochs, learning rate, weight decay, warm-up steps; batches of 100."""


def _scale(step: int, steps: int, warmup: int, minimum: float) -> float:
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(steps - warmup, 1)
    return minimum + (1 - minimum) * 0.5 * (1 + math.cos(math.pi * progress))


def classify(name: str, seed: int) -> str:
    """Train a classifier; its test accuracy and seconds of training."""
    import torch
    from torch import nn

    dataset, make, epochs, lr, decay, warmup = RECIPES[name]
    data = dataset()
    (x, y), (test_x, test_y) = (
        (torch.from_numpy(part[:].arrays()[0]), torch.from_numpy(part.targets.astype(np.int64)))
        for part in (data.train, data.test)
    )
    torch.manual_seed(seed)
    net = make(nn)
    matrices = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}], lr, fused=True
    )
    steps = epochs * math.ceil(len(x) / 100)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _scale(step, steps, warmup, 0.01))
    seconds, accuracy = 0.0, 0.0
    for epoch in range(epochs):
        start = time.perf_counter()
        net.train()
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
        seconds += time.perf_counter() - start
        net.eval()
        with torch.no_grad():
            called = torch.cat([net(part).argmax(1) for part in test_x.split(256)])
        accuracy = float((called == test_y).float().mean())
        print(f"epoch {epoch + 1}  test/accuracy {accuracy:.2%}  {seconds:.1f} s", flush=True)
    return f"test accuracy {accuracy:.2%} after {seconds:.0f} s"


def generate(seed: int, iterations: int = 2000) -> str:
    """Train nanoGPT's CPU recipe; its validation loss and seconds of training."""
    import torch

    text = TinyShakespeare()
    torch.manual_seed(seed)
    net = gpt.torch_net(4, 128, 4, 64)
    for module in net.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, 0.0, 0.02)
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.zeros_(module.bias)
    matrices = [p for name, p in net.named_parameters() if p.ndim > 1 and "positions" not in name]
    others = [p for name, p in net.named_parameters() if p.ndim <= 1 or "positions" in name]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 1e-3, betas=(0.9, 0.99), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _scale(step, iterations, 100, 0.1))
    corpus, held_out = (torch.from_numpy(np.asarray(part).astype(np.int64)) for part in (text.train, text.val))

    def loss_of(ids: Any, starts: Any) -> Any:
        rows = torch.stack([ids[start : start + 65] for start in starts.tolist()])
        return torch.nn.functional.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    start = time.perf_counter()
    for _ in range(iterations):
        optimizer.zero_grad()
        loss_of(corpus, torch.randint(len(corpus) - 65, (12,))).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        losses = [loss_of(held_out, torch.randint(len(held_out) - 65, (12,))).item() for _ in range(200)]
    return f"validation loss {np.mean(losses):.4f} after {seconds:.0f} s"


def main() -> None:
    """Run one recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=[*RECIPES, "gpt"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(cores())
    print(generate(args.seed) if args.recipe == "gpt" else classify(args.recipe, args.seed))


if __name__ == "__main__":
    main()
