"""Batch norm as custom ops: `batch_norm`'s functions on operands and results."""

import extensibility
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext

from .activation import IDENTITY
from .batch_norm import batch_norm_apply, batch_norm_grad, batch_norm_stats, maps_of, running_stats
from .memory import COMPUTE, Ptr, at, ptr
from .norm import F64
from .target import cpu_only

# options (float64)
comptime EPS = 0
comptime MOMENTUM = 1
comptime TRAINING = 2
comptime ACTIVATION = 3


@extensibility.register("noeira.batch_norm_train")
struct BatchNormTrain:
    """Normalise with the batch's statistics, and move the running ones (left out where they are empty)."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor,
        stats: OutputTensor[rank=2, ...],
        new_mean: OutputTensor[dtype=stats.dtype, rank=1, ...],
        new_var: OutputTensor[dtype=stats.dtype, rank=1, ...],
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        weight: InputTensor[dtype=stats.dtype, rank=1, ...],
        bias: InputTensor[dtype=stats.dtype, rank=1, ...],
        old_mean: InputTensor[dtype=stats.dtype, rank=1, ...],
        old_var: InputTensor[dtype=stats.dtype, rank=1, ...],
        options: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        comptime S = Ptr[COMPUTE[y.dtype]]
        var maps = maps_of(x)
        if maps.batch * maps.spatial < 2:
            raise Error("BatchNorm: expected more than one value per channel while training, got one")
        var o = ptr(options)
        var s = rebind[S](ptr(stats))
        batch_norm_stats[y.dtype](
            s,
            rebind[S](ptr(new_mean)),
            rebind[S](ptr(new_var)),
            rebind[P](ptr(x)),
            rebind[S](ptr(old_mean)),
            rebind[S](ptr(old_var)),
            old_mean.size() > 0,
            maps,
            at(o, EPS),
            at(o, MOMENTUM),
        )
        batch_norm_apply[y.dtype](
            rebind[P](ptr(y)),
            rebind[P](ptr(x)),
            s,
            rebind[S](ptr(weight)),
            rebind[S](ptr(bias)),
            weight.size() > 0,
            Int(at(ptr(options), ACTIVATION)),
            maps,
        )


@extensibility.register("noeira.batch_norm_eval")
struct BatchNormEval:
    """Normalise with the running statistics."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor,
        stats: OutputTensor[rank=2, ...],
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        weight: InputTensor[dtype=stats.dtype, rank=1, ...],
        bias: InputTensor[dtype=stats.dtype, rank=1, ...],
        mean: InputTensor[dtype=stats.dtype, rank=1, ...],
        variance: InputTensor[dtype=stats.dtype, rank=1, ...],
        options: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        comptime S = Ptr[COMPUTE[y.dtype]]
        var maps = maps_of(x)
        var s = rebind[S](ptr(stats))
        running_stats[COMPUTE[y.dtype]](
            s, rebind[S](ptr(mean)), rebind[S](ptr(variance)), maps.channels, at(ptr(options), EPS)
        )
        batch_norm_apply[y.dtype](
            rebind[P](ptr(y)),
            rebind[P](ptr(x)),
            s,
            rebind[S](ptr(weight)),
            rebind[S](ptr(bias)),
            weight.size() > 0,
            Int(at(ptr(options), ACTIVATION)),
            maps,
        )


@extensibility.register("noeira.batch_norm_grad")
struct BatchNormGrad:
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
        stats: InputTensor[dtype=dweight.dtype, rank=2, ...],
        weight: InputTensor[dtype=dweight.dtype, rank=1, ...],
        bias: InputTensor[dtype=dweight.dtype, rank=1, ...],
        options: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        comptime S = Ptr[COMPUTE[dx.dtype]]
        batch_norm_grad[dx.dtype](
            rebind[P](ptr(dx)),
            rebind[S](ptr(dweight)),
            rebind[S](ptr(dbias)),
            True,
            rebind[P](ptr(dy)),
            rebind[P](ptr(x)),
            rebind[S](ptr(stats)),
            rebind[S](ptr(weight)),
            rebind[S](ptr(bias)),
            weight.size() > 0,
            Int(at(ptr(options), ACTIVATION)),
            at(ptr(options), TRAINING) != 0,
            maps_of(x),
        )


@extensibility.register("noeira.batch_norm_input_grad")
struct BatchNormInputGrad:
    """The input gradient alone."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor,
        dy: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        x: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        stats: InputTensor[rank=2, ...],
        weight: InputTensor[dtype=stats.dtype, rank=1, ...],
        bias: InputTensor[dtype=stats.dtype, rank=1, ...],
        options: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        comptime S = Ptr[COMPUTE[dx.dtype]]
        var s = rebind[S](ptr(stats))
        batch_norm_grad[dx.dtype](
            rebind[P](ptr(dx)),
            s,
            s,
            False,
            rebind[P](ptr(dy)),
            rebind[P](ptr(x)),
            s,
            rebind[S](ptr(weight)),
            rebind[S](ptr(bias)),
            weight.size() > 0,
            Int(at(ptr(options), ACTIVATION)),
            at(ptr(options), TRAINING) != 0,
            maps_of(x),
        )


@extensibility.register("noeira.batch_norm_normalised")
struct BatchNormNormalised:
    """`y = (x - mean) rstd`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor,
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        stats: InputTensor[rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        var s = rebind[Ptr[COMPUTE[y.dtype]]](ptr(stats))
        batch_norm_apply[y.dtype](rebind[P](ptr(y)), rebind[P](ptr(x)), s, s, s, False, IDENTITY, maps_of(x))
