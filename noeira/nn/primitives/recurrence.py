"""Recurrence: GRU and LSTM, a step or a whole sequence at a time."""

from __future__ import annotations

from typing import Any, ClassVar

from noeira.nn.core.arguments import positives
from noeira.nn.core.decoding import Decoding
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.initializer import Uniform
from noeira.nn.core.module import Module, Width
from noeira.nn.core.param import Param
from noeira.ops.dispatch import Array
from noeira.ops.linear import linear, linear_input_grad, linear_param_grad
from noeira.ops.recurrence import gru, gru_grad, lstm, lstm_grad
from noeira.ops.shape import reshape


class Recurrent(Module):
    """Base of the recurrent layers: weights U and W, biases a and b, drawn from U(-1/sqrt(hidden), 1/sqrt(hidden)).

    Args:
        input_size: Width of x.
        hidden_size: Width of h.
        bias: Whether there are a and b.
    """

    gates: ClassVar[int]
    states: ClassVar[int]
    """Tensors as wide as h in the state: h alone, or h and c."""
    rank: ClassVar[int]
    """Axes of x."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        input_size, hidden_size = positives(self, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size = input_size, hidden_size
        init, width = Uniform(hidden_size**-0.5), self.gates * hidden_size
        self.weight_ih = Param((input_size, width), init=init)
        self.weight_hh = Param((hidden_size, width), init=init)
        self.bias_ih = Param((width,), init=init, decay=False) if bias else None
        self.bias_hh = Param((width,), init=init, decay=False) if bias else None

    def expects(self) -> Width:
        """`input_size` on the last axis."""
        return -1, self.input_size

    def gives(self, width: Width | None) -> Width:
        """`hidden_size` on the last axis."""
        return -1, self.hidden_size

    def extra_repr(self) -> str:
        """Both widths."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias_ih else ", bias=False")

    def check_inputs(self, *inputs: Array) -> None:
        """The rank and width of x, and the shape of the state."""
        super().check_inputs(*inputs)
        shape = tuple(inputs[0].shape)
        axes = ("batch", "steps", self.input_size) if self.rank == 3 else ("batch", self.input_size)
        if len(shape) != self.rank:
            raise ShapeError(f"expected an input of shape [{', '.join(map(str, axes))}], got {list(shape)}")
        if self.rank == 3 and shape[1] == 0:
            raise ShapeError(f"expected at least one step, got {list(shape)}")
        wanted = (shape[0], self.states * self.hidden_size)
        for state in inputs[1:]:
            if state is not None and tuple(state.shape) != wanted:
                raise ShapeError(f"expected a state of shape {list(wanted)}, got {list(state.shape)}")

    def _gates_of_inputs(self, x: Array) -> Array:
        return linear(x, self.weight_ih.val, self.bias_ih.val if self.bias_ih else None)

    def _bias(self) -> Array | None:
        return self.bias_hh.val if self.bias_hh else None

    def _inputs_grad(self, x: Array, before: Array, dgx: Array, dgh: Array) -> Array:
        """Add all gradients of parameters; dx."""
        linear_param_grad(self.weight_ih.grd, self.bias_ih.grd if self.bias_ih else None, x, dgx)
        linear_param_grad(self.weight_hh.grd, self.bias_hh.grd if self.bias_hh else None, before, dgh)
        return linear_input_grad(dgx, self.weight_ih.val)


def _as_sequence(x: Array) -> Array:
    if x.ndim != 2:
        raise ShapeError(f"expected an array of shape [B, width] for one step, got {list(x.shape)}")
    return reshape(x, (x.shape[0], 1, x.shape[1]))


def _as_step(x: Array) -> Array:
    return reshape(x, (x.shape[0], x.shape[2]))


class GRUSeq(Recurrent):
    """A gated recurrent unit over whole sequences.

    r = s(x U_r + a_r + h W_r + b_r), z = s(x U_z + a_z + h W_z + b_z), n = tanh(x U_n + a_n + r (h W_n + b_n)),
    h' = (1 - z) n + z h

    Args:
        input_size: D, the width of x.
        hidden_size: H, the width of h.
        bias: Whether there are a and b.

    Shape:
        x [B, T, D], optional initial state [B, H]; y [B, T, H], of which y[:, -1] is the last state;
        U [D, 3 H] (`weight_ih`), W [H, 3 H] (`weight_hh`), a and b [3 H]; gates in the order r, z, n.

    vjp:
        Back through time, with dh = dy + the gradient from the step after: dn = dh (1 - z) (1 - n^2),
        dz = dh (h - n) z (1 - z), dr = dn (h W_n + b_n) r (1 - r), and to the step before dh z + [dr, dz, dn r] W^T;
        dx = [dr, dz, dn] U^T, dU += x^T [dr, dz, dn], dW += h^T [dr, dz, dn r], da and db their sums over samples and
        steps. Saves x, r, z, n, h W_n + b_n, and h before each step.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GRUSeq
        >>> GRUSeq(3, 8)(np.ones((4, 5, 3), np.float32)).shape
        (4, 5, 8)

    Source: Cho et al. 2014. PyTorch: `torch.nn.GRU(batch_first=True)`, whose weights are the transposes.
    """

    gates, states, rank = 3, 1, 3

    def forward(self, x: Array, h0: Array | None = None) -> tuple[Array, Any]:
        """X [B, T, D] -> y [B, T, H]."""
        y, kept, before = gru(self._gates_of_inputs(x), h0, self.weight_hh.val, self._bias())
        return y, (x, kept, before, h0 is not None)

    def step(self, x: Array, decoding: Decoding) -> Array:
        """One step from the state kept of the one before."""
        y, _ = self.forward(x, decoding.state(self.hidden_size))
        decoding.keep_state(_as_step(y))
        return y

    def vjp(self, saved: Any, grad_output: Array) -> Any:
        """Dy -> dx, and dh0 if there was an h0; adds the parameters' gradients."""
        x, kept, before, with_state = saved
        dgx, dgh, dh0 = gru_grad(grad_output, kept, before, self.weight_hh.val)
        dx = self._inputs_grad(x, before, dgx, dgh)
        return (dx, dh0) if with_state else dx


class GRUCell(Recurrent):
    """One step of a gated recurrent unit.

    r = s(x U_r + a_r + h W_r + b_r), z = s(x U_z + a_z + h W_z + b_z), n = tanh(x U_n + a_n + r (h W_n + b_n)),
    h' = (1 - z) n + z h

    Args:
        input_size: D, the width of x.
        hidden_size: H, the width of h.
        bias: Whether there are a and b.

    Shape:
        x [B, D], h [B, H] (zeros if not given); h' [B, H]; parameters as in `GRUSeq`.

    vjp:
        That of `GRUSeq` for one step. Saves x, r, z, n, h W_n + b_n, h.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GRUCell
        >>> GRUCell(3, 8)(np.ones((4, 3), np.float32), np.zeros((4, 8), np.float32)).shape
        (4, 8)

    Source: Cho et al. 2014. PyTorch: `torch.nn.GRUCell`, whose weights are the transposes.
    """

    gates, states, rank = 3, 1, 2

    def forward(self, x: Array, h: Array | None = None) -> tuple[Array, Any]:
        """X [B, D], h [B, H] -> h' [B, H]."""
        y, kept, before = gru(_as_sequence(self._gates_of_inputs(x)), h, self.weight_hh.val, self._bias())
        return _as_step(y), (x, kept, before, h is not None)

    def vjp(self, saved: Any, grad_output: Array) -> Any:
        """Dh' -> dx, and dh if there was an h; adds the parameters' gradients."""
        x, kept, before, with_state = saved
        dgx, dgh, dh = gru_grad(_as_sequence(grad_output), kept, before, self.weight_hh.val)
        dx = self._inputs_grad(x, _as_step(before), _as_step(dgx), _as_step(dgh))
        return (dx, dh) if with_state else dx


class LSTMSeq(Recurrent):
    """A long short-term memory over whole sequences.

    i, f, o = s(x U + a + h W + b), g = tanh(x U_g + a_g + h W_g + b_g), c' = f c + i g, h' = o tanh(c')

    Args:
        input_size: D, the width of x.
        hidden_size: H, the width of h and of c.
        bias: Whether there are a and b.

    Shape:
        x [B, T, D], optional initial state [B, 2 H], h and c side by side; y [B, T, H];
        U [D, 4 H] (`weight_ih`), W [H, 4 H] (`weight_hh`), a and b [4 H]; gates in the order i, f, g, o.

    vjp:
        Back through time, with dh = dy + the gradient from the step after, u = tanh(c'),
        dc = the gradient from the step after + dh o (1 - u^2): di = dc g i (1 - i), df = dc c f (1 - f),
        dg = dc i (1 - g^2), do = dh u o (1 - o), and to the step before dc f and d W^T with d = [di, df, dg, do];
        dx = d U^T, dU += x^T d, dW += h^T d, da and db the sum of d over samples and steps.
        Saves x, i, f, g, o, c', h before each step, and the first and last state.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LSTMSeq
        >>> LSTMSeq(3, 8)(np.ones((4, 5, 3), np.float32)).shape
        (4, 5, 8)

    Source: Hochreiter and Schmidhuber 1997; Gers et al. 2000. PyTorch: `torch.nn.LSTM(batch_first=True)`, whose weights
    are the transposes.
    """

    gates, states, rank = 4, 2, 3

    def forward(self, x: Array, state: Array | None = None) -> tuple[Array, Any]:
        """X [B, T, D] -> y [B, T, H]."""
        y, kept, before, last = lstm(self._gates_of_inputs(x), state, self.weight_hh.val, self._bias())
        return y, (x, kept, before, state, last)

    def last_state(self, saved: Any) -> Array:
        """The state after the last step [B, 2 H], from what `forward` saved: where the next sequence may go on."""
        return saved[-1]

    def step(self, x: Array, decoding: Decoding) -> Array:
        """One step from the state kept of the one before."""
        y, saved = self.forward(x, decoding.state(2 * self.hidden_size))
        decoding.keep_state(self.last_state(saved))
        return y

    def vjp(self, saved: Any, grad_output: Array) -> Any:
        """Dy -> dx, and the state's gradient if there was one; adds the parameters' gradients."""
        x, kept, before, state, _ = saved
        grad, dstate = lstm_grad(grad_output, None, kept, state, self.weight_hh.val)
        dx = self._inputs_grad(x, before, grad, grad)
        return dx if state is None else (dx, dstate)


class LSTMCell(Recurrent):
    """One step of a long short-term memory.

    i, f, o = s(x U + a + h W + b), g = tanh(x U_g + a_g + h W_g + b_g), c' = f c + i g, h' = o tanh(c')

    Args:
        input_size: D, the width of x.
        hidden_size: H, the width of h and of c.
        bias: Whether there are a and b.

    Shape:
        x [B, D], state [B, 2 H], h and c side by side (zeros if not given); the next state [B, 2 H]; parameters as in
        `LSTMSeq`.

    vjp:
        That of `LSTMSeq` for one step, from the gradients of h' and c'. Saves x, i, f, g, o, c', h and the state.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LSTMCell
        >>> LSTMCell(3, 8)(np.ones((4, 3), np.float32), np.zeros((4, 16), np.float32)).shape
        (4, 16)

    Source: Hochreiter and Schmidhuber 1997; Gers et al. 2000. PyTorch: `torch.nn.LSTMCell`, which keeps h and c apart.
    """

    gates, states, rank = 4, 2, 2

    def gives(self, width: Width | None) -> Width:
        """Twice `hidden_size` on the last axis."""
        return -1, 2 * self.hidden_size

    def forward(self, x: Array, state: Array | None = None) -> tuple[Array, Any]:
        """X [B, D], state [B, 2 H] -> the next state [B, 2 H]."""
        gates = _as_sequence(self._gates_of_inputs(x))
        _, kept, before, last = lstm(gates, state, self.weight_hh.val, self._bias())
        return last, (x, kept, before, state)

    def vjp(self, saved: Any, grad_output: Array) -> Any:
        """The next state's gradient -> dx, and the state's if there was one; adds the parameters' gradients."""
        x, kept, before, state = saved
        grad, dstate = lstm_grad(None, grad_output, kept, state, self.weight_hh.val)
        dx = self._inputs_grad(x, _as_step(before), _as_step(grad), _as_step(grad))
        return dx if state is None else (dx, dstate)
