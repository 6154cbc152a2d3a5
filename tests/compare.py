"""The one comparison helper: a module or a loss against finite differences, PyTorch and its compiled self.

A `Case` is a module or loss with its inputs. Everything one can run of it comes back as `Results`: a dict with the
output "y", the input gradients "dx0", "dx1", ... and the parameter gradients under their dotted names. Each
`assert_*` compares two of them, and names the case and the tensor that is off.
"""

from __future__ import annotations

import hashlib
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from noeira import nn
from noeira.nn.loss import Loss

torch.set_num_threads(1)  # the tensors here are small: waking threads is all they would do

Results = dict[str, np.ndarray]
Twin = Callable[..., torch.Tensor]
"""twin(params, *inputs) -> output: the same function written with PyTorch; params in our layout, by dotted name."""

SEED = 7
"""Seed of random layers; every run of a case draws at this seed and step 1."""

DIFFERENCES, DOT, TORCH = 1e-6, 1e-9, 1e-10
"""Relative errors allowed: central differences, the dot-product identity, float64 PyTorch."""

REPLICAS = 8
"""Runs of float32 PyTorch that say how large its errors are."""

MOST_ELEMENTS = 40
"""Elements of a tensor that central differences visit; a random subset where there are more."""


@dataclass
class Case:
    """A module or loss on given inputs.

    Args:
        name: Named in every failure.
        subject: The module or loss; a module is initialised here, biases too (a zero bias hides faults).
        inputs: float32 and integer arrays.
        twin: The PyTorch twin.
        step: Step of the directional differences: small where there are kinks, larger where the function is smooth.
    """

    name: str
    subject: nn.Module | Loss
    inputs: tuple[np.ndarray, ...]
    twin: Twin | None = None
    step: float = 1e-2

    def __post_init__(self) -> None:
        if isinstance(self.subject, nn.Module):
            self.subject.init(seed=self.seed)
            rng = np.random.default_rng(self.seed)
            for param in self.subject.named_parameters().values():
                if not param.val.any():
                    param.val = rng.uniform(-0.5, 0.5, param.shape)

    @property
    def seed(self) -> int:
        """A number that belongs to the name."""
        return zlib.crc32(self.name.encode())

    @property
    def differentiable(self) -> tuple[int, ...]:
        """Which inputs get a gradient: a loss's prediction, a module's floating-point inputs."""
        if isinstance(self.subject, Loss):
            return (0,)
        return tuple(i for i, x in enumerate(self.inputs) if np.issubdtype(x.dtype, np.floating))

    @property
    def params(self) -> dict[str, nn.Param]:
        """The module's parameters by dotted name."""
        return self.subject.named_parameters() if isinstance(self.subject, nn.Module) else {}

    def inputs_as(self, dtype: str) -> list[np.ndarray]:
        """The inputs with floating-point ones converted; read-only, so that nothing may write into them."""
        arrays = [x.astype(dtype) if np.issubdtype(x.dtype, np.floating) else x.copy() for x in self.inputs]
        for array in arrays:
            array.flags.writeable = False
        return arrays

    def values(self, dtype: str) -> dict[str, np.ndarray]:
        """Copies of the parameters' values."""
        return {name: param.val.astype(dtype) for name, param in self.params.items()}

    def upstream(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """The output gradient: normal numbers that float32 holds exactly."""
        grad = np.random.default_rng(self.seed + 1).standard_normal(tuple(shape)).astype(np.float32).astype(dtype)
        grad = np.asarray(grad)
        grad.flags.writeable = False
        return grad

    def forward(self, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, object]:
        """The reference forward at the case's random draw."""
        nn.seed(SEED)
        y, saved = self.subject.forward(*inputs)
        return np.asarray(y), saved

    def convert(self, dtype: str) -> None:
        """Convert the module's memory; float32 values survive a stay in float64."""
        if isinstance(self.subject, nn.Module):
            self.subject.to(dtype=dtype)


def results(case: Case, y: np.ndarray, dx: object) -> Results:
    """Bring what a forward and vjp gave, and the gradients now in the parameters, under their names."""
    gradients = [grad for grad in (dx if isinstance(dx, tuple) else (dx,)) if grad is not None]
    assert len(gradients) == len(case.differentiable), f"{case.name}: {len(gradients)} input gradients"
    found = {"y": np.array(y)}
    found |= {f"dx{i}": np.array(grad) for i, grad in zip(case.differentiable, gradients, strict=True)}
    return found | {name: np.array(param.grd) for name, param in case.params.items()}


def reference(case: Case, dtype: str = "float64", *, vjps: int = 1) -> Results:
    """Forward and vjp on the NumPy path; with `vjps` > 1 the vjp runs that often without zeroing in between."""
    case.convert(dtype)
    try:
        if isinstance(case.subject, nn.Module):
            case.subject.zero_grad()
        dx = None
        for _ in range(vjps):
            y, saved = case.forward(case.inputs_as(dtype))
            dx = case.subject.vjp(saved, case.upstream(y.shape, dtype))
        got = results(case, y, dx)
    finally:
        case.convert("float32")
    for key, array in got.items():
        assert array.dtype == np.dtype(dtype), f"{case.name}: '{key}' is {array.dtype} in a {dtype} run"
    return got


def torch_run(case: Case, dtype: str, replica: int = 0) -> Results:
    """Forward and backward of the PyTorch twin; a `replica` > 0 moves inputs and parameters by a few float32 ulps."""
    assert case.twin is not None, f"{case.name} has no twin"
    rng = np.random.default_rng(replica)

    def tensor(array: np.ndarray) -> torch.Tensor:
        if replica and np.issubdtype(array.dtype, np.floating):
            near = array.astype(np.float32) * (1 + rng.integers(-4, 5, array.shape) * np.finfo(np.float32).eps)
            array = near.astype(np.float32).astype(dtype)
        return torch.tensor(array)

    inputs = [tensor(x) for x in case.inputs_as(dtype)]
    for i in case.differentiable:
        inputs[i].requires_grad_()
    params = {name: tensor(value).requires_grad_() for name, value in case.values(dtype).items()}
    y = case.twin(params, *inputs)
    y.backward(torch.tensor(case.upstream(tuple(y.shape), dtype)))
    leaves = {f"dx{i}": inputs[i] for i in case.differentiable} | params
    gradients = {key: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for key, leaf in leaves.items()}
    return {"y": y.detach().numpy()} | {key: grad.numpy() for key, grad in gradients.items()}


# ---- what may differ by how much -------------------------------------------------------------------------------------


def largest(array: np.ndarray) -> float:
    """Largest absolute value; 0 for an empty array."""
    return float(np.max(np.abs(array), initial=0.0))


def assert_same_keys(case: Case, got: Results, want: Results) -> None:
    assert got.keys() == want.keys(), f"{case.name}: got {sorted(got)}, expected {sorted(want)}"
    for key, array in got.items():
        assert array.shape == want[key].shape, f"{case.name}: '{key}' is {array.shape}, expected {want[key].shape}"


def assert_close(case: Case, got: Results, want: Results, tolerance: float) -> None:
    """Every tensor within `tolerance` of the wanted one, relative to that one's largest element."""
    assert_same_keys(case, got, want)
    for key, array in got.items():
        error = largest(array.astype(np.float64) - want[key])
        scale = largest(want[key])
        assert np.isfinite(array).all() and error <= tolerance * scale, (
            f"{case.name}: '{key}' is off by {error:.3g}, allowed {tolerance:g} of {scale:.3g}"
        )


_errors: dict[bytes, dict[str, tuple[float, float]]] = {}


def torch_errors(case: Case) -> dict[str, tuple[float, float]]:
    """Largest and root-mean-square error of float32 PyTorch by tensor: the worst of some runs on nearby numbers.

    One run on a few elements may be exact by luck; nearby numbers have the same conditioning. Several gates ask for
    the same case, so the answer is kept.
    """
    digest = hashlib.sha256(case.name.encode())
    for array in (*case.inputs, *case.values("float64").values()):
        digest.update(np.ascontiguousarray(array).tobytes())
    if digest.digest() in _errors:
        return _errors[digest.digest()]
    worst: dict[str, tuple[float, float]] = {}
    for replica in range(REPLICAS):
        single, double = torch_run(case, "float32", replica), torch_run(case, "float64", replica)
        for key, want in double.items():
            error = single[key] - want
            before = worst.get(key, (0.0, 0.0))
            worst[key] = (max(before[0], largest(error)), max(before[1], _rms(error)))
    _errors[digest.digest()] = worst
    return worst


def assert_float32(case: Case, got: Results, truth: Results, factor: float = 2) -> None:
    """Errors against the float64 truth at most `factor` times those of float32 PyTorch, in the maximum and the mean.

    Where PyTorch is exact, an ulp or two of the largest element are allowed.
    """
    assert_same_keys(case, got, truth)
    theirs = torch_errors(case)
    eps = float(np.finfo(np.float32).eps)
    measures: tuple[tuple[str, Callable[[np.ndarray], float], float], ...] = (
        ("largest", largest, 2 * eps),
        ("mean", _rms, eps),
    )
    for key, want in truth.items():
        assert got[key].dtype == np.float32, f"{case.name}: '{key}' is {got[key].dtype}"
        for (what, measure, floor), error in zip(measures, theirs[key], strict=True):
            ours, allowed = measure(got[key] - want), factor * error + floor * measure(want)
            assert ours <= allowed, (
                f"{case.name}: {what} error of '{key}' {ours:.3g}; PyTorch's {error:.3g}, allowed {allowed:.3g}"
            )


def _rms(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0


def assert_identical(case: Case, first: Results, second: Results) -> None:
    """The same bytes."""
    assert_same_keys(case, first, second)
    for key, array in first.items():
        assert array.tobytes() == second[key].tobytes(), f"{case.name}: '{key}' differs between two runs"


def assert_propagates(case: Case, run: Callable[[Case], Results]) -> None:
    """NaN and infinities, in turn in one element of each input and of the output's gradient, come out where the float32
    reference has them, and nowhere else."""
    rng, inputs, upstream = np.random.default_rng(case.seed), case.inputs, case.upstream
    try:
        for value in (np.nan, np.inf, -np.inf):
            for place in (*(i for i, x in enumerate(inputs) if np.issubdtype(x.dtype, np.floating)), "u"):
                spot = int(rng.integers(2**31))
                case.inputs = tuple(_with(x, value, spot) if i == place else x for i, x in enumerate(inputs))
                case.upstream = lambda shape, dtype, v=value, s=spot, p=place: (  # type: ignore[method-assign]
                    _with(upstream(shape, dtype), v, s) if p == "u" else upstream(shape, dtype)
                )
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    want, got = reference(case, "float32"), run(case)
                assert_same_keys(case, got, want)
                for key, array in got.items():
                    same = np.isnan(array) == np.isnan(want[key])
                    same &= np.where(np.isinf(array) | np.isinf(want[key]), array == want[key], True) | np.isnan(array)
                    assert same.all(), (
                        f"{case.name}: with {value} in {place}, '{key}' has {array[~same][:3]} at "
                        f"{np.argwhere(~same)[0].tolist()}, the reference {want[key][~same][:3]}"
                    )
    finally:
        case.inputs, case.upstream = inputs, upstream  # type: ignore[method-assign]


def _with(array: np.ndarray, value: float, spot: int) -> np.ndarray:
    """A copy with one other element."""
    changed = array.copy()
    if changed.size:
        changed.reshape(-1)[spot % changed.size] = value
    return changed


def assert_doubled(case: Case, once: Results, twice: Results) -> None:
    """Parameter gradients doubled, but for the rounding of another order; output and input gradients the same."""
    eps = float(np.finfo(once["y"].dtype).eps)
    want = {key: array * (2 if key in case.params else 1) for key, array in once.items()}
    assert_close(case, twice, want, 32 * eps)


# ---- the gates on the reference --------------------------------------------------------------------------------------


def assert_torch(case: Case) -> None:
    """Gate: the float64 reference and float64 PyTorch agree."""
    assert_close(case, reference(case), torch_run(case, "float64"), TORCH)


def assert_reference_float32(case: Case) -> None:
    """Gate: in float32, where nothing is tuned for it, the reference is about as good as PyTorch."""
    assert_float32(case, reference(case, "float32"), reference(case), factor=4)


def assert_accumulates(case: Case) -> None:
    """Gate: a second vjp without zeroing adds the same again."""
    assert_doubled(case, reference(case), reference(case, vjps=2))


def _tensors(case: Case, inputs: list[np.ndarray]) -> dict[str, np.ndarray]:
    """What the output is a function of, live: writing into these changes the next forward."""
    return {f"dx{i}": inputs[i] for i in case.differentiable} | {n: p.val for n, p in case.params.items()}


def _writable_inputs(case: Case) -> list[np.ndarray]:
    inputs = case.inputs_as("float64")
    for array in inputs:
        array.flags.writeable = True
    return inputs


def assert_central_differences(case: Case) -> None:
    """Gate: each derivative of <y, u> agrees with its central difference."""
    got = reference(case)
    case.convert("float64")
    try:
        inputs = _writable_inputs(case)
        u = case.upstream(got["y"].shape, "float64")
        magnitude = float(np.sum(np.abs(got["y"] * u)))  # what rounding is relative to
        for key, tensor in _tensors(case, inputs).items():
            scale, flat = largest(got[key]), tensor.reshape(-1)
            assert np.shares_memory(flat, tensor) or not flat.size
            rng = np.random.default_rng(case.seed)
            for i in rng.permutation(flat.size)[:MOST_ELEMENTS]:
                old = float(flat[i])
                h = 1e-5 * max(1.0, abs(old))
                sums = []
                for moved in (old + h, old - h):
                    flat[i] = moved
                    sums.append(float(np.sum(case.forward(inputs)[0] * u)))
                flat[i] = old
                difference, derivative = (sums[0] - sums[1]) / (2 * h), float(got[key].reshape(-1)[i])
                allowed = DIFFERENCES * max(scale, abs(difference)) + 4 * np.finfo(np.float64).eps * magnitude / h
                assert abs(difference - derivative) <= allowed, (
                    f"{case.name}: element {i} of '{key}': central difference {difference:.9g}, vjp {derivative:.9g}"
                )
    finally:
        case.convert("float32")


def assert_dot_product(case: Case) -> None:
    """Gate: <J v, u> = <v, J^T u> in a random direction v over all inputs and parameters at once.

    J v comes from central differences, extrapolated twice (Richardson).
    """
    got = reference(case)
    case.convert("float64")
    try:
        inputs = _writable_inputs(case)
        u = case.upstream(got["y"].shape, "float64")
        tensors = _tensors(case, inputs)
        start = {key: array.copy() for key, array in tensors.items()}
        rng = np.random.default_rng(case.seed + 2)
        direction = {key: rng.standard_normal(array.shape) for key, array in tensors.items()}

        def along(h: float) -> float:
            sums = []
            for sign in (1, -1):
                for key, array in tensors.items():
                    array[...] = start[key] + sign * h * direction[key]
                sums.append(float(np.sum(case.forward(inputs)[0] * u)))
            return (sums[0] - sums[1]) / (2 * h)

        d1, d2, d4 = along(case.step), along(case.step / 2), along(case.step / 4)
        r1, r2 = (4 * d2 - d1) / 3, (4 * d4 - d2) / 3
        forward = (16 * r2 - r1) / 15
        for key, array in tensors.items():
            array[...] = start[key]
        terms = [direction[key] * got[key] for key in tensors]
        backward = float(sum(np.sum(term) for term in terms))
        magnitude = float(np.sum(np.abs(got["y"] * u)))
        rounding = 16 * np.finfo(np.float64).eps * magnitude / case.step
        allowed = DOT * max(float(sum(np.sum(np.abs(term)) for term in terms)), abs(forward)) + rounding
        assert abs(forward - backward) <= allowed, (
            f"{case.name}: <Jv, u> = {forward:.12g}, <v, J^T u> = {backward:.12g}, allowed {allowed:.3g}"
        )
    finally:
        case.convert("float32")


GATES: tuple[Callable[[Case], None], ...] = (
    assert_central_differences,
    assert_dot_product,
    assert_torch,
    assert_accumulates,
    assert_reference_float32,
)
"""All gates that need no compiler."""
