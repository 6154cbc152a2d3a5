"""Optimizers against torch.optim, and what they must never do; on the reference and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch

from noeira import nn
from noeira.ops import control
from tests.compare import largest
from tests.compiled import run, small_programs

COMPILED = pytest.mark.compiled
PATHS = pytest.mark.parametrize(
    ("path", "dtype"),
    [
        pytest.param("reference", "float64", id="reference float64"),
        pytest.param("reference", "float32", id="reference float32"),
        pytest.param("compiled", "float32", id="compiled float32", marks=COMPILED),
        pytest.param("compiled", "float64", id="compiled float64", marks=COMPILED),
    ],
)


@dataclass
class Stepper:
    """An optimizer, the arenas of a small model, and control memory: what a step works on."""

    optimizer: nn.Optimizer
    path: str
    dtype: str = "float64"
    clear: bool = True
    lr_table: tuple[float, ...] = ()
    net: nn.Sequential = field(default_factory=lambda: nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 2)))

    def __post_init__(self) -> None:
        if not self.net.initialized:
            self.net.init(seed=3)
        self.net.to(dtype=self.dtype)
        self.arena = self.net.arena()
        self.arena.claim(self.optimizer.kind, ("m", "v"))
        self.params = self.net.named_parameters()
        self.segments, self.multipliers = self.arena.segments()
        self.counters = np.zeros(control.COUNTERS, np.int64)
        self.counters[[control.CURSOR, control.BAD_INDEX]] = (1, -1)
        self.record = np.zeros((1, control.LOG_COLUMNS), np.float32)

    @property
    def memory(self) -> dict[str, np.ndarray]:
        return {role: flat.numpy() for role, flat in self.arena.memory.items()}

    def step(self, gradients: Mapping[str, np.ndarray] | None = None, weight: float = 1.0) -> None:
        """One step; gradients are those given, else what lies in the arena."""
        for name, gradient in (gradients or {}).items():
            self.params[name].memory["grd"].write(np.asarray(gradient).reshape(self.params[name].shape))
        memory = self.memory | {
            "counters": self.counters,
            "accumulated": np.array([weight], np.float32),
            "record": self.record,
            "segments": self.segments,
            "multipliers": self.multipliers,
            "hyper": self.optimizer.hyper(clear=self.clear),
            "lr_table": np.array(self.lr_table or (self.optimizer.lr,)),
        }
        if self.path == "reference":
            self.optimizer.apply(memory)
        else:
            program = small_programs()[f"{self.optimizer.kind}_{self.dtype}"]
            run(program, {name: memory[name] for name in program.inputs})

    def values(self) -> dict[str, np.ndarray]:
        return {name: np.array(param.val, np.float64) for name, param in self.params.items()}

    def count(self, position: int) -> int:
        return int(self.counters[position])


def random_gradients(stepper: Stepper, seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: (scale * rng.standard_normal(param.shape)).astype(np.float32).astype(stepper.dtype)
        for name, param in stepper.params.items()
    }


# ---- against PyTorch -------------------------------------------------------------------------------------------------

Make = Callable[..., nn.Optimizer]
Twin = Callable[[list[dict[str, object]]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Rule:
    """An optimizer, its twin (given the parameter groups), and its weight decay."""

    name: str
    make: Make
    twin: Twin
    decay: float = 0.0


def _rules() -> Iterator[Rule]:
    for name, options in {
        "plain": {},
        "momentum": {"momentum": 0.9},
        "dampening": {"momentum": 0.9, "dampening": 0.3},
        "nesterov": {"momentum": 0.8, "nesterov": True},
    }.items():
        for decay in (0.0, 0.1):
            yield Rule(
                f"SGD {name}{', decay' if decay else ''}",
                lambda o=options, d=decay, **clip: nn.SGD(0.1, weight_decay=d, **o, **clip),
                lambda groups, o=options: torch.optim.SGD(groups, 0.1, **o),
                decay,
            )
    for name, options in {
        "default": {},
        "fast": {"betas": (0.5, 0.9), "eps": 1e-3},
        "no memory": {"betas": (0.0, 0.0)},
    }.items():
        for decay in (0.0, 0.1):
            yield Rule(
                f"Adam {name}{', decay' if decay else ''}",
                lambda o=options, d=decay, **clip: nn.Adam(0.01, weight_decay=d, **o, **clip),
                lambda groups, o=options: torch.optim.Adam(groups, 0.01, **o),
                decay,
            )
    yield Rule(
        "AdamW",
        lambda **clip: nn.AdamW(0.01, weight_decay=0.1, **clip),
        lambda groups: torch.optim.AdamW(groups, 0.01),
        0.1,
    )
    yield Rule("AdamW default decay", lambda **clip: nn.AdamW(**clip), lambda groups: torch.optim.AdamW(groups), 0.01)


RULES = list(_rules())
CLIPS = {"no clip": {}, "clip norm": {"clip_norm": 1.0}, "clip value": {"clip_value": 0.2}}


@cache
def torch_steps(rule: Rule, clip_name: str, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """The same 50 steps in PyTorch: weights decay, biases do not."""
    start, clip = Stepper(rule.make(), "reference"), CLIPS[clip_name]
    params = {name: torch.tensor(value).to(dtype).requires_grad_() for name, value in start.values().items()}
    weights = [param for name, param in params.items() if name.endswith("weight")]
    biases = [param for name, param in params.items() if name.endswith("bias")]
    optimizer = rule.twin([{"params": weights, "weight_decay": rule.decay}, {"params": biases, "weight_decay": 0.0}])
    for seed in range(50):
        for name, gradient in random_gradients(start, seed, _scale(seed)).items():
            params[name].grad = torch.tensor(gradient).to(dtype)
        if "clip_norm" in clip:
            torch.nn.utils.clip_grad_norm_(list(params.values()), clip["clip_norm"])
        if "clip_value" in clip:
            torch.nn.utils.clip_grad_value_(list(params.values()), clip["clip_value"])
        optimizer.step()
    return {name: param.detach().to(torch.float64).numpy() for name, param in params.items()}


def _scale(seed: int) -> float:
    return (0.01, 1.0, 30.0)[seed % 3]  # below and far above the norm to clip to


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@PATHS
def test_fifty_steps_follow_pytorch(path: str, dtype: str, rule: Rule, clip: str) -> None:
    stepper = Stepper(rule.make(**CLIPS[clip]), path, dtype)
    truth = torch_steps(rule, clip, torch.float64)
    if dtype == "float32":
        single = torch_steps(rule, clip, torch.float32)
        allowed = {
            name: 2 * largest(single[name] - value) + 4 * np.finfo(np.float32).eps * largest(value)
            for name, value in truth.items()
        }
    else:
        allowed = {name: 1e-10 * largest(value) for name, value in truth.items()}
    start = stepper.values()
    for seed in range(50):
        stepper.step(random_gradients(stepper, seed, _scale(seed)))
    for name, value in stepper.values().items():
        assert largest(value - truth[name]) <= allowed[name], name
        assert largest(value - start[name]) > 1e-3  # it moved
    assert stepper.count(control.APPLIED) == 50


ALL: dict[str, Make] = {
    "SGD": lambda **options: nn.SGD(0.1, momentum=0.9, **options),
    "Adam": lambda **options: nn.Adam(0.1, **options),
    "AdamW": lambda **options: nn.AdamW(0.1, **options),
}
EVERY = pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())


# ---- clipping --------------------------------------------------------------------------------------------------------


def hundred(optimizer: nn.Optimizer, path: str, dtype: str) -> Stepper:
    """100 parameters that start at 0."""
    stepper = Stepper(optimizer, path, dtype, net=nn.Sequential(nn.Linear(10, 10, bias=False)))
    stepper.params["0.weight"].val = np.zeros((10, 10))
    return stepper


@pytest.mark.parametrize("size", [1e20, 1e30, 1e37, -1e20, 3.0])
@PATHS
def test_a_hundred_huge_gradients_clipped_to_norm_1_give_a_tenth_each(path: str, dtype: str, size: float) -> None:
    stepper = hundred(nn.SGD(1.0, clip_norm=1.0), path, dtype)
    stepper.step({"0.weight": np.full((10, 10), size)})
    np.testing.assert_allclose(stepper.values()["0.weight"], -np.sign(size) * 0.1, rtol=1e-4)
    np.testing.assert_allclose(stepper.record[0, control.LOG_NORM], 10 * abs(size), rtol=1e-6)
    assert stepper.count(control.SKIPPED) == 0


@PATHS
def test_small_gradients_are_not_scaled_up(path: str, dtype: str) -> None:
    stepper = hundred(nn.SGD(1.0, clip_norm=1.0), path, dtype)
    stepper.step({"0.weight": np.full((10, 10), 0.01)})
    np.testing.assert_allclose(stepper.values()["0.weight"], -0.01, rtol=1e-6)


@PATHS
def test_value_clipping_comes_after_norm_clipping(path: str, dtype: str) -> None:
    stepper = hundred(nn.SGD(1.0, clip_norm=1.0, clip_value=0.05), path, dtype)
    gradient = np.zeros((10, 10))
    gradient[0, :2] = (-3.0, 4.0)  # norm 5: scaled to -0.6, 0.8; then cut
    gradient[1, 0] = 0.1  # scaled to 0.02
    stepper.step({"0.weight": gradient})
    moved = -stepper.values()["0.weight"]
    np.testing.assert_allclose([*moved[0, :2], moved[1, 0]], [-0.05, 0.05, 0.02], rtol=1e-3)


@PATHS
def test_the_mean_over_accumulated_weight_is_clipped_not_the_sum(path: str, dtype: str) -> None:
    stepper = hundred(nn.SGD(1.0, clip_norm=1.0), path, dtype)
    stepper.step({"0.weight": np.full((10, 10), 0.4)}, weight=8.0)  # norm of the sum 4, of the mean 0.5
    np.testing.assert_allclose(stepper.values()["0.weight"], -0.05, rtol=1e-6)
    np.testing.assert_allclose(stepper.record[0, control.LOG_NORM], 0.5, rtol=1e-6)


# ---- what must not be stepped ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "index"), [("0.weight", 0), ("0.weight", 34), ("0.bias", 6), ("1.weight", 5), ("1.bias", 1)]
)
@EVERY
@PATHS
def test_a_non_finite_gradient_skips_the_step(
    path: str, dtype: str, make: Make, name: str, index: int, bad: float
) -> None:
    stepper = Stepper(make(clip_norm=1.0), path, dtype, lr_table=(0.1, 0.01))
    stepper.step(random_gradients(stepper, 0))
    before = {role: stepper.memory[role].tobytes() for role in ("val", "m", "v")}
    gradients = random_gradients(stepper, 1)
    gradients[name].reshape(-1)[index] = bad
    stepper.step(gradients)
    assert {role: stepper.memory[role].tobytes() for role in before} == before
    assert (stepper.count(control.APPLIED), stepper.count(control.SKIPPED)) == (1, 1)
    assert stepper.arena.name_at(stepper.count(control.BAD_INDEX)) == name
    assert stepper.record[0, control.LOG_SKIPPED] == 1
    assert not stepper.memory["grd"].any()  # what was bad is gone
    stepper.step(random_gradients(stepper, 2))
    assert stepper.count(control.APPLIED) == 2
    assert stepper.record[0, control.LOG_SKIPPED] == 0
    np.testing.assert_allclose(stepper.record[0, control.LOG_LR], 0.01, rtol=1e-6)  # the schedule had not moved
    assert stepper.memory["val"].tobytes() != before["val"]


@PATHS
def test_the_first_bad_parameter_is_remembered_until_asked(path: str, dtype: str) -> None:
    stepper = Stepper(nn.SGD(0.1), path, dtype)
    for name in ("1.weight", "0.weight"):
        gradients = random_gradients(stepper, 0)
        gradients[name].reshape(-1)[0] = np.nan
        stepper.step(gradients)
    assert stepper.count(control.SKIPPED) == 2
    assert stepper.arena.name_at(stepper.count(control.BAD_INDEX)) == "1.weight"


@EVERY
@PATHS
def test_frozen_parameters_do_not_move(path: str, dtype: str, make: Make) -> None:
    net = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 6), nn.Linear(6, 2)).init(seed=3)
    net[1].freeze()
    stepper = Stepper(make(weight_decay=0.5), path, dtype, net=net)
    start = stepper.values()
    for seed in range(3):
        gradients = random_gradients(stepper, seed)
        stepper.step({name: gradients[name] for name in gradients if not name.startswith("1.")})
    for name, value in stepper.values().items():
        assert (largest(value - start[name]) == 0) == name.startswith("1."), name
    assert not stepper.params["1.weight"].m.any()


@EVERY
@PATHS
def test_decay_is_on_weights_alone(path: str, dtype: str, make: Make) -> None:
    stepper = Stepper(make(weight_decay=0.1), path, dtype)
    for param in stepper.params.values():
        param.val = np.ones(param.shape)
    stepper.step({name: np.zeros(param.shape) for name, param in stepper.params.items()})
    for name, value in stepper.values().items():
        if name.endswith("bias"):
            np.testing.assert_array_equal(value, 1.0)
        else:
            assert (value < 1.0).all(), name


@EVERY
@PATHS
def test_gaps_between_parameters_stay_zero(path: str, dtype: str, make: Make) -> None:
    stepper = Stepper(make(weight_decay=0.1), path, dtype)
    stepper.step(random_gradients(stepper, 0))
    for role, flat in stepper.memory.items():
        used = np.zeros(stepper.arena.size, bool)
        for name, param in stepper.params.items():
            used[stepper.arena.offsets[name] : stepper.arena.offsets[name] + param.size] = True
        assert not flat[~used].any() and (role == "v" or role == "grd" or flat[used].any()), role


@EVERY
@PATHS
def test_gradients_are_cleared_only_when_asked(path: str, dtype: str, make: Make) -> None:
    for clear in (True, False):
        stepper = Stepper(make(), path, dtype, clear=clear)
        gradients = random_gradients(stepper, 0)
        stepper.step(gradients)
        for name, param in stepper.params.items():
            np.testing.assert_array_equal(param.grd, 0 * gradients[name] if clear else gradients[name])


@PATHS
def test_the_learning_rate_is_that_of_the_applied_step(path: str, dtype: str) -> None:
    stepper = hundred(nn.SGD(1.0), path, dtype)
    stepper.lr_table = (0.5, 0.25, 0.125)
    stepper.counters[[control.APPLIED, control.LR_BASE]] = 7  # a second training of the same model
    seen = []
    for _ in range(5):
        before = stepper.values()["0.weight"][0, 0]
        stepper.step({"0.weight": np.ones((10, 10))})
        seen.append(before - stepper.values()["0.weight"][0, 0])
    np.testing.assert_allclose(seen, [0.5, 0.25, 0.125, 0.125, 0.125], rtol=1e-6)


# ---- in a loop of one's own ------------------------------------------------------------------------------------------


def step_by_hand(net: nn.Module, optimizer: nn.Optimizer, fill: float) -> float:
    for param in net.named_parameters().values():
        param.grd = np.full(param.shape, fill)
    return optimizer.step(net)


@EVERY
def test_a_loop_of_ones_own_equals_the_arena_step(make: Make) -> None:
    optimizer, net = make(), nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 2)).init(seed=3).to(dtype="float64")
    stepper = Stepper(make(), "reference")
    for seed in range(5):
        gradients = random_gradients(stepper, seed)
        for name, param in net.named_parameters().items():
            param.grd = gradients[name]
        norm = optimizer.step(net)
        stepper.step(gradients)
        np.testing.assert_allclose(norm, np.sqrt(sum(np.sum(g**2) for g in gradients.values())), rtol=1e-6)
        np.testing.assert_array_equal(net[1].weight.grd, gradients["1.weight"])  # they stay until zero_grad()
    for name, param in net.named_parameters().items():
        np.testing.assert_array_equal(param.val, stepper.params[name].val)


def test_a_skipped_step_is_reported() -> None:
    net, optimizer = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).init(), nn.Adam()
    step_by_hand(net, optimizer, 1.0)
    assert (optimizer.skipped, optimizer.last_skipped) == (0, None)
    optimizer.require_finite()
    net[1].bias.grd = np.array([np.nan])
    before = net[0].weight.val.copy()
    optimizer.step(net)
    np.testing.assert_array_equal(net[0].weight.val, before)
    assert (optimizer.skipped, optimizer.last_skipped) == (1, "1.bias")
    with pytest.raises(nn.NonFiniteError, match=r"non-finite gradient in '1\.bias'"):
        optimizer.require_finite()
    step_by_hand(net, optimizer, 1.0)
    optimizer.require_finite()
    assert net.arena().applied == 2


def test_moments_follow_the_model_and_are_forgotten_by_another_rule() -> None:
    net = nn.Linear(3, 2).init()
    step_by_hand(net, nn.Adam(), 1.0)
    first = net.weight.m.copy()
    assert first.any()
    step_by_hand(net, nn.Adam(), 1.0)  # another object, the same rule: goes on
    assert net.arena().applied == 2 and net.weight.m[0, 0] > first[0, 0]
    step_by_hand(net, nn.SGD(0.1, momentum=0.5), 1.0)
    assert net.arena().applied == 1
    np.testing.assert_array_equal(net.weight.m, 1.0)  # velocity of a first step, no trace of Adam


def test_schedules_need_the_trainer() -> None:
    net = nn.Linear(3, 2).init()
    with pytest.raises(ValueError, match=r"SGD\.step: a Cosine schedule needs the length"):
        nn.SGD(schedule=nn.Cosine()).step(net)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.SGD(-0.1), "SGD: expected lr to be a finite number >= 0, got -0.1"),
        (lambda: nn.Adam(float("nan")), "Adam: expected lr to be a finite number >= 0, got nan"),
        (lambda: nn.Adam(betas=(0.9, 1.0)), r"Adam: expected betas\[1\] in \[0, 1\), got 1.0"),
        (lambda: nn.AdamW(eps=-1e-8), "AdamW: expected eps to be a finite number >= 0, got -1e-08"),
        (lambda: nn.AdamW(weight_decay=-1), "AdamW: expected weight_decay to be a finite number >= 0, got -1"),
        (lambda: nn.SGD(clip_norm=0), "SGD: expected clip_norm to be a finite number > 0 or None, got 0"),
        (lambda: nn.SGD(clip_value=float("inf")), "SGD: expected clip_value to be a finite .* or None, got inf"),
        (lambda: nn.SGD(momentum=1.5), r"SGD: expected momentum in \[0, 1\), got 1.5"),
        (lambda: nn.SGD(nesterov=True), "SGD: nesterov needs momentum > 0 and dampening = 0"),
        (lambda: nn.SGD(momentum=0.9, dampening=0.1, nesterov=True), "SGD: nesterov needs momentum"),
    ],
)
def test_bad_hyper_parameters_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
