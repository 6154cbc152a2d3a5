"""Module: owns its parameters, and states its forward and its vector-Jacobian product explicitly."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import numpy as np

from noeira.nn.core import composition, context
from noeira.nn.core.arena import Arena
from noeira.nn.core.decoding import Decoding
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.initializer import Draw, Initializer, Kaiming
from noeira.nn.core.param import Param, State
from noeira.ops import control
from noeira.ops.dispatch import Array
from noeira.runtime import staging
from noeira.runtime.devices import Device, resolve

Width = tuple[int, int]
"""(axis, size) of the features a module expects or gives: (-1, 256) for a Linear, (1, 16) for a convolution."""


class Module:
    """Base of all layers and models.

    A subclass defines

    - `forward(*inputs) -> (output, saved)`: `saved` holds what `vjp` needs and nothing else; it is a value, not
      hidden state, so a module may be applied twice.
    - `vjp(saved, grad_output) -> grad_input`: adds into its parameters' gradients, returns the input's.
    - `integers`, where some inputs are ids or masks: their positions.

    A forward that only calls other modules may be marked `@composed`: it returns the output alone, and the vjp is the
    composition of theirs.

    Parameters (`Param`), states (`State`) and children (`Module`, or lists and dicts of them) are found by walking
    attributes; there is nothing to register. On NumPy arrays everything runs at once, without compiling.
    """

    training: bool = True
    tokenwise: bool = False
    """Whether a token's output depends on that token alone, as in most layers without attention or recurrence."""
    integers: ClassVar[tuple[int, ...]] = ()
    """Positions of the inputs that are ids or masks; all others are floating-point numbers of one dtype."""
    _arena: Arena | None = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if getattr(cls.__dict__.get("forward"), "is_composed", False):
            if "vjp" in cls.__dict__:
                raise TypeError(f"{cls.__name__}: a composed forward has its vjp already; define one or the other")
            cls.vjp = _composed_vjp  # type: ignore[method-assign]
        for name in ("forward", "vjp"):
            if name in cls.__dict__:
                setattr(cls, name, _located(cls.__dict__[name], name))

    def forward(self, *inputs: Any, **options: Any) -> tuple[Any, Any]:
        """Compute the output, and what `vjp` needs: a tree (tuples, lists, dicts) of values and plain Python data."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward(*inputs) -> (output, saved)")

    def vjp(self, saved: Any, grad_output: Array) -> Any:
        """Add the parameters' gradients, and return the input's: one per input, None for integers and masks."""
        raise NotImplementedError(f"{type(self).__name__} does not define vjp(saved, grad_output) -> grad_input")

    def __call__(self, *inputs: Array, **options: Any) -> Array:
        """`forward` without the saved part; floating-point arrays are converted to the model's dtype."""
        recorder = composition.recorder_for(inputs)
        if recorder is not None:
            return recorder.apply(self, inputs, options)
        if staging.active() is None and not context.running.stack:
            dtype = _placement(self.named_parameters())[1]
            inputs = tuple(x.astype(dtype) if _is_float_array(x) and x.dtype != dtype else x for x in inputs)
        return self.forward(*inputs, **options)[0]

    def step(self, x: Array, decoding: Decoding) -> Array:
        """The output at one token [1, 1, ...], given what `decoding` keeps of the tokens before it.

        Equal to that token's output in `forward`, in evaluation mode, of the sequence so far. Layers that mix tokens
        define it; for the others it is `forward`.
        """
        if not self.tokenwise:
            raise NotImplementedError(
                f"{self.describe()} does not define step(x, decoding), so it cannot run token by token; "
                "generate(..., cache=False) runs the whole sequence for each"
            )
        return self.forward(x)[0]

    # ---- what composition and errors need -----------------------------------------------------------------------

    def check_inputs(self, *inputs: Array) -> None:
        """Raise `ShapeError` where the inputs are not what `forward` takes; the error is located by the caller."""
        expected = self.expects()
        if expected is None or not inputs:
            return
        if inputs[0] is None:
            raise ShapeError("expected an array, got NoneType")
        axis, size = expected
        shape = tuple(inputs[0].shape)
        if len(shape) < 2 or (axis >= 0 and len(shape) <= axis) or shape[axis] != size:
            pattern = f"[batch, ..., {size}]" if axis == -1 else f"{size} on axis {axis}"
            raise ShapeError(f"expected an input of shape {pattern}, got {list(shape)}")

    def expects(self) -> Width | None:
        """The input width this module insists on, None where any will do."""
        return None

    def gives(self, width: Width | None) -> Width | None:
        """The output width for an input width, None where it is not known before shapes are."""
        return None

    # ---- the walk ------------------------------------------------------------------------------------------------

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Direct children with their names, in the order the attributes were set.

        A wrapper may call its child "": then the child's parameters go by the names they have without it.
        """
        for name, value in vars(self).items():
            if name.startswith("_"):
                continue
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, list | tuple | dict):
                items = value.items() if isinstance(value, dict) else enumerate(value)
                yield from ((f"{name}.{key}", item) for key, item in items if isinstance(item, Module))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it with dotted paths; a shared module appears once."""
        seen: set[int] = set()

        def walk(module: Module, path: str) -> Iterator[tuple[str, Module]]:
            if id(module) in seen:
                return
            seen.add(id(module))
            yield path, module
            for name, child in module.named_children():
                yield from walk(child, context.join(path, name))

        yield from walk(self, prefix)

    def _named(self, kind: type) -> dict[str, Any]:
        found: dict[str, Any] = {}
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, kind) and not name.startswith("_") and id(value) not in seen:
                    seen.add(id(value))
                    found[context.join(path, name)] = value
        return found

    def named_parameters(self) -> dict[str, Param]:
        """All parameters by dotted name; a shared one once, under its first name."""
        return self._named(Param)

    def named_states(self) -> dict[str, State]:
        """All states by dotted name."""
        return self._named(State)

    @property
    def num_parameters(self) -> int:
        """Number of trainable and frozen scalars."""
        return sum(param.size for param in self.named_parameters().values())

    # ---- memory --------------------------------------------------------------------------------------------------

    def arena(self) -> Arena:
        """The memory of this model as a whole, for those who train, move or save it.

        It is made if there is none, and made anew (values and moments carried over) if parameters were added,
        replaced, or adopted by another model. Values are not drawn here.
        """
        params, states = self.named_parameters(), self.named_states()
        if self._arena is None or not self._arena.owns(params, states):
            self._arena = Arena(params, states, *_placement(params))
        return self._arena

    def _ensure_memory(self) -> None:
        """Give memory to what has none, without taking the rest from a larger model that owns it."""
        params = {name: param for name, param in self.named_parameters().items() if not param.memory}
        states = {name: state for name, state in self.named_states().items() if state.memory is None}
        if params or states:
            Arena(params, states, *_placement(self.named_parameters()))

    def init(self, initializer: Initializer | None = None, *, seed: int = 0) -> Self:
        """Draw every parameter, and put states, gradients and moments back to their start; returns the model.

        The draw of a parameter depends on the seed and its dotted name alone.

        Args:
            initializer: For weights whose layer does not name its own; `Kaiming()` by default.
            seed: Any 64-bit integer.
        """
        self._ensure_memory()
        for param in self.named_parameters().values():
            param.drawn = False
            for role in param.memory.keys() - {"val"}:
                param.memory[role].write(np.zeros(param.shape, param.memory[role].dtype))
        for state in self.named_states().values():
            state.val = np.full(state.shape, state.fill)
        if self._arena is not None:
            self._arena.applied = 0
        return self.init_missing(initializer, seed=seed)

    def init_missing(self, initializer: Initializer | None = None, *, seed: int = 0) -> Self:
        """Draw the parameters that have no values yet, and leave the others as they are; returns the model."""
        self._ensure_memory()
        for param in self.named_parameters().values():
            if not param.drawn:
                rule = param.init or initializer or Kaiming()
                values = rule(param.size, param.fan_in, param.fan_out, Draw(seed, param.name))
                param.val = values.reshape(param.shape)
        return self

    @property
    def initialized(self) -> bool:
        """Whether all parameters have values."""
        return all(param.drawn for param in self.named_parameters().values())

    def to(self, *, device: str | Device | None = None, dtype: object = None) -> Self:
        """Move the model's memory to a device, or convert it ("float32", "float64"); values and moments stay.

        Raises:
            ValueError: This module is part of a larger model: that one has to be moved.
        """
        params = self.named_parameters()
        old = _placement(params)
        new = old[0] if device is None else resolve(device), old[1] if dtype is None else np.dtype(dtype)  # type: ignore[call-overload]
        if new[1] not in (np.float32, np.float64):
            raise ValueError(f"expected dtype float32 or float64, got {new[1]}")
        if new != old or not any(param.memory for param in params.values()):
            mine = {id(param) for param in params.values()}
            for param in params.values():
                if param.arena is not None and any(id(other) not in mine for other in param.arena.params.values()):
                    raise ValueError(f"cannot move {self.describe()} alone: '{param.name}' is part of a larger model")
            self._arena = Arena(params, self.named_states(), *new)
        return self

    def zero_grad(self) -> None:
        """Set all gradients to 0."""
        for param in self.named_parameters().values():
            if param.memory:
                param.memory["grd"].write(np.zeros(param.shape, param.memory["grd"].dtype))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_arena"}  # a copy gets its own

    # ---- modes ---------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Switch Dropout, BatchNorm and the like to training (or, with False, to evaluation)."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Switch to evaluation: `train(False)`."""
        return self.train(False)

    def freeze(self) -> Self:
        """Stop training this subtree: its gradients are not computed and optimizers skip it."""
        for param in self.named_parameters().values():
            param.trainable = False
            if param.memory:  # what was added before must not count in a gradient norm
                param.memory["grd"].write(np.zeros(param.shape, param.memory["grd"].dtype))
        return self

    def unfreeze(self) -> Self:
        """Train this subtree again."""
        for param in self.named_parameters().values():
            param.trainable = True
        return self

    # ---- text ----------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """Sizes and options shown in the repr."""
        return ""

    def describe(self) -> str:
        """One line: the class and its sizes, without children."""
        return f"{type(self).__name__}({self.extra_repr()})"

    def __repr__(self) -> str:
        children = list(self.named_children())
        if not children:
            return self.describe()
        lines = [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in children]
        extra = self.extra_repr()
        return f"{type(self).__name__}({extra}\n  " + "\n  ".join(lines) + "\n)"

    def summary(self, *input_shapes: tuple[int, ...]) -> str:
        """Table of layers: output shapes, parameters, FLOPs, and bytes of parameters, gradients, moments, activations.

        Args:
            input_shapes: Shape of each input, batch included.
        """
        from noeira.nn.core.summary import summarize

        return summarize(self, *input_shapes)


def _composed_vjp(self: Module, saved: Any, grad_output: Any) -> Any:
    """The modules' vjps in reverse order; gradients of values that were read more than once are added up."""
    return composition.pull(saved, grad_output)


def _given(self: Module, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The inputs of a forward by position, without optional ones that are None, and its other options.

    Raises:
        ShapeError: Too few inputs, or too many.
    """
    inputs = [p for p in list(signature.parameters.values())[1:] if p.kind is not p.KEYWORD_ONLY]
    least = sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in inputs)
    try:
        bound = signature.bind(self, *args, **kwargs)
    except TypeError:
        if least <= len(args) <= len(inputs) or kwargs:
            raise
        wanted = f"{least}" if least == len(inputs) else f"{least} to {len(inputs)}"
        names = ", ".join(p.name for p in inputs)
        raise ShapeError(f"expected {wanted} input{'s' * (len(inputs) > 1)} ({names}), got {len(args)}") from None
    given = bound.args[1:]
    while given and given[-1] is None and inputs[min(len(given), len(inputs)) - 1].default is None:
        given = given[:-1]
    return given, bound.kwargs


def _check_arrays(self: Module, signature: inspect.Signature, inputs: tuple[Any, ...]) -> None:
    """Refuse what is no array, and dtypes that a layer would compute nonsense with.

    A module that only hands its inputs on leaves dtypes to the layers inside, which are named in the error, and None
    where its signature allows it.
    """
    own = next((value for value in vars(self).values() if isinstance(value, Param) and value.memory), None)
    only_hands_on = own is None and any(True for _ in self.named_children())
    expected = None if own is None else own.memory["val"].dtype
    names = list(signature.parameters.values())[1:]
    for position, x in enumerate(inputs):
        name = names[min(position, len(names) - 1)]
        if only_hands_on and x is None and (name.default is None or name.kind is name.VAR_POSITIONAL):
            continue
        if x is None or not _is_array(x):
            raise ShapeError(f"expected an array, got {type(x).__name__}")
        if only_hands_on or position in self.integers:
            continue
        if x.ndim == 0 and not self.tokenwise:
            raise ShapeError("expected an input with a batch axis, got a number, []")
        if not np.issubdtype(x.dtype, np.floating):
            raise ShapeError(f"expected a floating-point input, got {x.dtype} {list(x.shape)}")
        if expected is not None and x.dtype != expected:
            raise ShapeError(f"expected an input of dtype {expected}, got {x.dtype}")
        expected = x.dtype


def _located(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap forward or vjp: keep the stack of running modules, check inputs, and say where an error arose."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def run(self: Module, *args: Any, **kwargs: Any) -> Any:
        running = context.running
        outermost = not running.stack
        eager = staging.active() is None
        if outermost and eager:
            self.init_missing()
            _require_host(self)
        is_super_call = not outermost and running.stack[-1] is self
        if name == "forward" and any(True for _ in composition.values_in(args)):
            if is_super_call and getattr(method, "is_composed", False):
                return method(self, *args, **kwargs)
            raise TypeError(f"call {self.describe()} itself, not its forward: {composition.RULE}")
        running.stack.append(self)
        try:
            if name != "forward":
                return method(self, *args, **kwargs)
            if outermost and eager:
                running.draws.clear()
                running.rng[control.STEP] += self.training
            inputs, options = _given(self, signature, args, kwargs)
            _check_arrays(self, signature, inputs)
            self.check_inputs(*inputs)
            result = method(self, *inputs, **options)
            if not isinstance(result, tuple) or len(result) != 2:
                came = (
                    f"got {type(result).__name__}; a forward made of other modules' calls is decorated with nn.composed"
                )
                raise TypeError(f"expected forward to return (output, saved), {came}")
            output, saved = result
            for observer in () if is_super_call or running.replaying else running.observers:
                observer(context.path(), self, output, saved)
            return output, saved
        except Exception as error:
            _locate(error)
            raise
        finally:
            running.stack.pop()

    return run


def _locate(error: Exception) -> None:
    """Put the module's path into the message of our own errors, and as a note on the others; once."""
    if getattr(error, "_noeira_located", False):
        return
    error._noeira_located = True  # type: ignore[attr-defined]
    if isinstance(error, ShapeError):
        error.args = (f"{context.where()}: {error.args[0]}",)
    else:
        error.add_note(f"in {context.where()}")


def _is_array(x: object) -> bool:
    return isinstance(x, np.ndarray | np.generic | staging.Staged)


def _is_float_array(x: object) -> bool:
    return isinstance(x, np.ndarray) and np.issubdtype(x.dtype, np.floating)


def _placement(params: dict[str, Param]) -> tuple[Device, np.dtype[Any]]:
    """Device and dtype of the first parameter that has memory."""
    for param in params.values():
        if param.memory:
            return param.memory["val"].device, param.memory["val"].dtype
    return Device("cpu"), np.dtype(np.float32)


def _require_host(module: Module) -> None:
    device, _ = _placement(module.named_parameters())
    if device.kind != "cpu":
        raise RuntimeError(
            f"{module.describe()} lives on {device}, where only compiled programs run; "
            "move it with `to(device='cpu')` to run it on arrays"
        )
