"""A fresh process up to its first training step: `python -m bench.first_step SYSTEM INPUTS.npz DEPTH`.

Started by the start-up and compile cases. It trains a perceptron of DEPTH hidden layers, or a GPT of DEPTH blocks
where the inputs are ids, for one step, the way a user of the system would, and prints the loss as soon as the step is
done, then the seconds it took to get to certain points. Nothing is imported before the clock starts but what Python
itself needs.
"""

import itertools
import json
import sys
import time
from typing import Any

START = time.perf_counter()


def noeira(path: str, depth: int) -> dict[str, float | str]:
    """One step through `Trainer`."""
    import numpy as np

    from noeira.nn import GPT, Adam, CrossEntropyLoss, Linear, LinearReLU, Module, Sequential, Trainer

    imported = time.perf_counter() - START
    arrays = np.load(path)
    net: Module
    if arrays["x"].dtype == np.int32:
        from bench.cases.gpt import VOCAB

        heads = int(arrays["heads"])
        net = GPT(VOCAB, arrays["x"].shape[1], depth, heads, arrays["val tokens.weight"].shape[1]).init(seed=0)
        for name, param in net.named_parameters().items():
            param.val = arrays[f"val {name}"]
    else:
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
    spent = _count_compiling()
    history = trainer.fit((arrays["x"], arrays["y"]), batch_size=len(arrays["x"]), shuffle=False)
    return {"loss": history.losses[0], "imports": imported, "compiled": str(history.compiled), "compile": sum(spent)}


def _count_compiling() -> list[float]:
    """CPU seconds of every build the trainer asks for from now on, compilers it starts included."""
    import resource

    from noeira.nn.training import trainer

    build, spent = trainer.build, []

    def used() -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    def counted(*arguments: Any) -> Any:
        before = used()
        try:
            return build(*arguments)
        finally:
            spent.append(used() - before)

    trainer.build = counted
    return spent


def torch(path: str, depth: int, *, compiled: bool = False) -> dict[str, float | str]:
    """One step of the usual loop."""
    import numpy as np
    import torch
    from torch.nn.functional import cross_entropy

    imported = time.perf_counter() - START
    arrays = np.load(path)
    net = _torch_gpt(arrays, depth) if arrays["x"].dtype == np.int32 else _torch_perceptron(arrays, depth)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"].astype(np.int64))

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(net(x).flatten(0, -2), y.flatten())

    optimizer.zero_grad()
    loss = (torch.compile(loss_of) if compiled else loss_of)(x, y)
    loss.backward()
    optimizer.step()
    return {"loss": loss.item(), "imports": imported, "compiled": str(compiled)}


def _torch_perceptron(arrays: Any, depth: int) -> Any:
    import torch
    from torch.nn import Linear, ReLU, Sequential

    weights = [torch.from_numpy(arrays[f"w{i}"]) for i in range(depth)] + [torch.from_numpy(arrays["head"])]
    layers: list[torch.nn.Module] = []
    for weight in weights:
        layers += [Linear(weight.shape[0], weight.shape[1]), ReLU()]
        with torch.no_grad():
            layers[-2].weight.copy_(weight.T)  # type: ignore[union-attr, operator]
            layers[-2].bias.zero_()  # type: ignore[union-attr, operator]
    return Sequential(*layers[:-1])


def _torch_gpt(arrays: Any, depth: int) -> Any:
    from bench.cases.gpt import torch_net
    from bench.training import load_into_torch, weights_of

    net = torch_net(depth, arrays["val tokens.weight"].shape[1], int(arrays["heads"]), arrays["x"].shape[1])
    load_into_torch(net, weights_of({name: arrays[name] for name in arrays}))
    return net


def main(system: str, path: str, depth: str) -> None:
    """Run, print the result at once, leave without tearing anything down."""
    if system == "noeira":
        found = noeira(path, int(depth))
    else:
        found = torch(path, int(depth), compiled=system == "torch-compile")
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
