"""Registrations of the recurrent kernels."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext

from .memory import Ptr, at, ptr
from .recurrence import Sequence, gru, gru_grad, lstm, lstm_grad
from .target import cpu_only

comptime HAS_STATE = 0
comptime HAS_BIAS = 1
comptime HAS_GRAD = 2
comptime HAS_LAST_GRAD = 3
"""Places of flags among the options: whether there is an initial state, a bias, a gradient of y, one of the last state.
What is not there is stood in for by any tensor of its rank."""


@always_inline
def _flag(options: InputTensor[dtype=DType.int64, rank=1, ...], place: Int) -> Bool:
    return at(ptr(options), place) != 0


@extensibility.register("noeira.gru")
struct Gru:
    """See `recurrence.gru`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[rank=3, ...],
        kept: OutputTensor[dtype=y.dtype, rank=3, ...],
        before: OutputTensor[dtype=y.dtype, rank=3, ...],
        gx: InputTensor[dtype=y.dtype, rank=3, ...],
        h0: InputTensor[dtype=y.dtype, rank=2, ...],
        w: InputTensor[dtype=y.dtype, rank=2, ...],
        bias: InputTensor[dtype=y.dtype, rank=1, ...],
        options: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        gru(
            ptr(y),
            rebind[P](ptr(kept)),
            rebind[P](ptr(before)),
            rebind[P](ptr(gx)),
            rebind[P](ptr(h0)),
            _flag(options, HAS_STATE),
            rebind[P](ptr(w)),
            rebind[P](ptr(bias)),
            _flag(options, HAS_BIAS),
            Sequence(y.dim_size(0), y.dim_size(1), y.dim_size(2)),
        )


@extensibility.register("noeira.gru_grad")
struct GruGrad:
    """See `recurrence.gru_grad`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dgx: OutputTensor[rank=3, ...],
        dgh: OutputTensor[dtype=dgx.dtype, rank=3, ...],
        dh0: OutputTensor[dtype=dgx.dtype, rank=2, ...],
        dy: InputTensor[dtype=dgx.dtype, rank=3, ...],
        kept: InputTensor[dtype=dgx.dtype, rank=3, ...],
        before: InputTensor[dtype=dgx.dtype, rank=3, ...],
        w: InputTensor[dtype=dgx.dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dgx.dtype]
        gru_grad(
            ptr(dgx),
            rebind[P](ptr(dgh)),
            rebind[P](ptr(dh0)),
            rebind[P](ptr(dy)),
            rebind[P](ptr(kept)),
            rebind[P](ptr(before)),
            rebind[P](ptr(w)),
            Sequence(dy.dim_size(0), dy.dim_size(1), dy.dim_size(2)),
        )


@extensibility.register("noeira.lstm")
struct Lstm:
    """See `recurrence.lstm`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[rank=3, ...],
        kept: OutputTensor[dtype=y.dtype, rank=3, ...],
        before: OutputTensor[dtype=y.dtype, rank=3, ...],
        last: OutputTensor[dtype=y.dtype, rank=2, ...],
        gx: InputTensor[dtype=y.dtype, rank=3, ...],
        state: InputTensor[dtype=y.dtype, rank=2, ...],
        w: InputTensor[dtype=y.dtype, rank=2, ...],
        bias: InputTensor[dtype=y.dtype, rank=1, ...],
        options: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        lstm(
            ptr(y),
            rebind[P](ptr(kept)),
            rebind[P](ptr(before)),
            rebind[P](ptr(last)),
            rebind[P](ptr(gx)),
            rebind[P](ptr(state)),
            _flag(options, HAS_STATE),
            rebind[P](ptr(w)),
            rebind[P](ptr(bias)),
            _flag(options, HAS_BIAS),
            Sequence(y.dim_size(0), y.dim_size(1), y.dim_size(2)),
        )


@extensibility.register("noeira.lstm_grad")
struct LstmGrad:
    """See `recurrence.lstm_grad`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dgx: OutputTensor[rank=3, ...],
        dstate: OutputTensor[dtype=dgx.dtype, rank=2, ...],
        dy: InputTensor[dtype=dgx.dtype, rank=3, ...],
        dlast: InputTensor[dtype=dgx.dtype, rank=2, ...],
        kept: InputTensor[dtype=dgx.dtype, rank=3, ...],
        state: InputTensor[dtype=dgx.dtype, rank=2, ...],
        w: InputTensor[dtype=dgx.dtype, rank=2, ...],
        options: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dgx.dtype]
        lstm_grad(
            ptr(dgx),
            rebind[P](ptr(dstate)),
            rebind[P](ptr(dy)),
            _flag(options, HAS_GRAD),
            rebind[P](ptr(dlast)),
            _flag(options, HAS_LAST_GRAD),
            rebind[P](ptr(kept)),
            rebind[P](ptr(state)),
            _flag(options, HAS_STATE),
            rebind[P](ptr(w)),
            Sequence(dgx.dim_size(0), dgx.dim_size(1), w.dim_size(0)),
        )
