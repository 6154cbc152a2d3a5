"""A fresh process up to its first training step: `python -m bench.first_step SYSTEM INPUTS.npz DEPTH`.

Started by the start-up and compile cases. It trains a perceptron of DEPTH hidden layers for one step, the way a user
of the system would, and prints the loss as soon as the step is done, then the seconds it took to get to certain
points. Nothing is imported before the clock starts but what Python itself needs.
"""

import itertools
import json
import sys
import time

START = time.perf_counter()


def noeira(path: str, depth: int) -> dict[str, float | str]:
    """One step through `Trainer`."""
    import numpy as np

    from noeira.nn import Adam, CrossEntropyLoss, Linear, LinearReLU, Sequential, Trainer

    imported = time.perf_counter() - START
    arrays = np.load(path)
    widths = [arrays["x"].shape[1], *[arrays["w0"].shape[1]] * depth]
    layers = [LinearReLU(a, b) for a, b in itertools.pairwise(widths)]
    net = Sequential(*layers, Linear(widths[-1], arrays["head"].shape[1])).init(seed=0)
    for i, param in enumerate(net.named_parameters().values()):
        if i % 2 == 0:
            param.val = arrays[f"w{i // 2}"] if i < 2 * depth else arrays["head"]
        else:
            param.val = np.zeros(param.shape, np.float32)
    trainer = Trainer(
        net,
        loss=CrossEntropyLoss(),
        optimizer=Adam(1e-3),
        device="cpu",
        run_dir=None,
        fast_dev_run=True,
        progress=False,
    )
    history = trainer.fit((arrays["x"], arrays["y"]), batch_size=len(arrays["x"]), shuffle=False)
    return {"loss": history.losses[0], "imports": imported, "compiled": str(history.compiled)}


def torch(path: str, depth: int, *, compiled: bool = False) -> dict[str, float | str]:
    """One step of the usual loop."""
    import numpy as np
    import torch
    from torch.nn import Linear, ReLU, Sequential
    from torch.nn.functional import cross_entropy

    imported = time.perf_counter() - START
    arrays = np.load(path)
    weights = [torch.from_numpy(arrays[f"w{i}"]) for i in range(depth)] + [torch.from_numpy(arrays["head"])]
    layers: list[torch.nn.Module] = []
    for weight in weights:
        layers += [Linear(weight.shape[0], weight.shape[1]), ReLU()]
        with torch.no_grad():
            layers[-2].weight.copy_(weight.T)  # type: ignore[union-attr, operator]
            layers[-2].bias.zero_()  # type: ignore[union-attr, operator]
    net = Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"].astype(np.int64))

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(net(x), y)

    optimizer.zero_grad()
    loss = (torch.compile(loss_of) if compiled else loss_of)(x, y)
    loss.backward()
    optimizer.step()
    return {"loss": loss.item(), "imports": imported, "compiled": str(compiled)}


def main(system: str, path: str, depth: str) -> None:
    """Run, print the result at once, leave without tearing anything down."""
    if system == "noeira":
        found = noeira(path, int(depth))
    else:
        found = torch(path, int(depth), compiled=system == "torch-compile")
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
