"""LayerNorm, RMSNorm and GroupNorm as MAX custom ops: thin wrappers around `norm`."""

import extensibility
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext

from .memory import COMPUTE, Ptr, at, ptr
from .norm import F64, Rows, row_norm, row_norm_grad
from .target import cpu_only

# options (float64)
comptime EPS = 0
comptime CENTER = 1
comptime GROUPS = 2
"""0: the last axis is normalised; else that many groups of the channels on axis 1."""
comptime ACTIVATION = 3


def rows_of(x: InputTensor, options: Ptr[F64]) -> Rows:
    """Sizes of a normalisation from its input's shape and its options."""
    var groups = Int(at(options, GROUPS))
    var center = at(options, CENTER) != 0
    if groups == 0:
        var width = x.dim_size(x.rank - 1)
        return Rows(x.size() // max(width, 1), 1, width, 1, center)
    var spatial = 1
    comptime for d in range(2, x.rank):
        spatial *= x.dim_size(d)
    return Rows(x.dim_size(0), groups, x.dim_size(min(1, x.rank - 1)) // groups, spatial, center)


@extensibility.register("noeira.row_norm")
struct RowNorm:
    """Normalise, scale, shift and activate; an empty weight or bias is left out. `stats` has 3 numbers a row."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor,
        stats: OutputTensor,
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        weight: InputTensor[dtype=stats.dtype, rank=1, ...],
        bias: InputTensor[dtype=stats.dtype, rank=1, ...],
        options: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        comptime S = Ptr[COMPUTE[y.dtype]]
        var o = ptr(options)
        row_norm[y.dtype](
            rebind[P](ptr(y)),
            rebind[S](ptr(stats)),
            rebind[P](ptr(x)),
            rebind[S](ptr(weight)),
            weight.size() > 0,
            rebind[S](ptr(bias)),
            bias.size() > 0,
            rows_of(x, o),
            at(o, EPS),
            Int(at(o, ACTIVATION)),
        )


@extensibility.register("noeira.row_norm_grad")
struct RowNormGrad:
    """The input gradient; those of weight and bias are added in place."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor,
        dweight: MutableInputTensor[rank=1, ...],
        dbias: MutableInputTensor[dtype=dweight.dtype, rank=1, ...],
        dy: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        x: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        stats: InputTensor[dtype=dweight.dtype, ...],
        weight: InputTensor[dtype=dweight.dtype, rank=1, ...],
        options: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        comptime S = Ptr[COMPUTE[dx.dtype]]
        row_norm_grad[dx.dtype](
            rebind[P](ptr(dx)),
            rebind[S](ptr(dweight)),
            True,
            rebind[S](ptr(dbias)),
            True,
            rebind[P](ptr(dy)),
            rebind[P](ptr(x)),
            rebind[S](ptr(stats)),
            rebind[S](ptr(weight)),
            weight.size() > 0,
            rows_of(x, ptr(options)),
        )


@extensibility.register("noeira.row_norm_weight_grad")
struct RowNormWeightGrad:
    """The input gradient; that of weight is added in place."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor,
        dweight: MutableInputTensor[rank=1, ...],
        dy: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        x: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        stats: InputTensor[dtype=dweight.dtype, ...],
        weight: InputTensor[dtype=dweight.dtype, rank=1, ...],
        options: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        comptime S = Ptr[COMPUTE[dx.dtype]]
        row_norm_grad[dx.dtype](
            rebind[P](ptr(dx)),
            rebind[S](ptr(dweight)),
            True,
            rebind[S](ptr(dweight)),
            False,
            rebind[P](ptr(dy)),
            rebind[P](ptr(x)),
            rebind[S](ptr(stats)),
            rebind[S](ptr(weight)),
            weight.size() > 0,
            rows_of(x, ptr(options)),
        )


@extensibility.register("noeira.row_norm_input_grad")
struct RowNormInputGrad:
    """The input gradient alone."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor,
        dy: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        x: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        stats: InputTensor,
        weight: InputTensor[dtype=stats.dtype, rank=1, ...],
        options: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        comptime S = Ptr[COMPUTE[dx.dtype]]
        var s = rebind[S](ptr(stats))
        row_norm_grad[dx.dtype](
            rebind[P](ptr(dx)),
            s,
            False,
            s,
            False,
            rebind[P](ptr(dy)),
            rebind[P](ptr(x)),
            s,
            rebind[S](ptr(weight)),
            weight.size() > 0,
            rows_of(x, ptr(options)),
        )
