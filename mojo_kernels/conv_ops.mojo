"""Convolutions as MAX custom ops; float32 and float64.

    y = x * w + b        dx = the transposed map of dy        dw += ...        db += the sum of dy by channel

Maps are [N, C, H, W], or [N, C, L] as maps of one row. `geometry` holds stride, padding and dilation, each for rows and
columns, the number of groups, and the kernel's rows and columns. Padding at the far ends follows from the output's size.
A bias of size 0 stands for none.
"""

import extensibility
from extensibility import InputTensor, ManagedTensorSlice, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext

from .conv import Convolution, convolution, convolution_input_grad
from .conv_axis import Window
from .conv_weight import convolution_weight_grad
from .memory import Ptr, ptr
from .target import cpu_only
from .threads import parallel_for, worthwhile_parts


@always_inline
def _height(x: ManagedTensorSlice) -> Int:
    """Rows of a map; a sequence is a map of one row."""
    comptime if x.rank == 4:
        return x.dim_size(2)
    else:
        return 1


@always_inline
def _sizes(x: ManagedTensorSlice, y: ManagedTensorSlice, geometry: Ptr[DType.int64]) -> Convolution:
    """The sizes of the convolution from x to y."""
    comptime assert x.rank == y.rank and (x.rank == 3 or x.rank == 4), "expected [N, C, L] or [N, C, H, W]"

    def at(i: Int) {imm} -> Int:
        return Int(geometry.unsafe_offset(i).unsafe_load())

    return Convolution(
        x.dim_size(0),
        at(6),
        x.dim_size(1),
        _height(x),
        x.dim_size(x.rank - 1),
        y.dim_size(1),
        _height(y),
        y.dim_size(y.rank - 1),
        Window(at(7), at(0), at(2), at(4)),
        Window(at(8), at(1), at(3), at(5)),
    )


@no_inline
def add_channel_sums[dtype: DType](sums: Ptr[dtype], x: Ptr[dtype], images: Int, channels: Int, plane: Int):
    """`sums[c] += sum over n, p of x[n, c, p]`, image by image."""
    comptime W = 8
    var parts = min(max(1, channels), worthwhile_parts(8 * images * channels * plane))

    def part(i: Int) {imm}:
        for c in range(i * channels // parts, (i + 1) * channels // parts):
            var total = Float64(0)
            for n in range(images):
                var p = x.unsafe_offset((n * channels + c) * plane)
                var sum = SIMD[dtype, W](0)
                var j = 0
                while j + W <= plane:
                    sum += p.unsafe_offset(j).unsafe_load[width=W]()
                    j += W
                var rest = sum.cast[DType.float64]().reduce_add()
                while j < plane:
                    rest += p.unsafe_offset(j).unsafe_load().cast[DType.float64]()
                    j += 1
                total += rest
            var out_ = sums.unsafe_offset(c)
            out_.unsafe_store(out_.unsafe_load() + total.cast[dtype]())

    parallel_for(part, parts)


@extensibility.register("noeira.conv")
struct Conv:
    """`y[N, M, ...] = x[N, C, ...] * weight[M, C / groups, ...] + bias[M]`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor,
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        weight: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        bias: InputTensor[dtype=y.dtype, rank=1, ...],
        geometry: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        var c = _sizes(x, y, ptr(geometry))
        convolution(
            c,
            rebind[P](y.unsafe_ptr()),
            rebind[P](x.unsafe_ptr()),
            rebind[P](weight.unsafe_ptr()),
            bias.dim_size(0) > 0,
            rebind[P](bias.unsafe_ptr()),
        )


@extensibility.register("noeira.conv_input_grad")
struct ConvInputGrad:
    """`dx[N, C, ...]`, the transposed map of dy[N, M, ...] with weight[M, C / groups, ...], plus bias[C]."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor,
        dy: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        weight: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        bias: InputTensor[dtype=dx.dtype, rank=1, ...],
        geometry: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        var c = _sizes(dx, dy, ptr(geometry))
        convolution_input_grad(
            c,
            rebind[P](dx.unsafe_ptr()),
            rebind[P](dy.unsafe_ptr()),
            rebind[P](weight.unsafe_ptr()),
            bias.dim_size(0) > 0,
            rebind[P](bias.unsafe_ptr()),
        )


@extensibility.register("noeira.conv_param_grad")
struct ConvParamGrad:
    """`dweight[M, C / groups, ...] += ...` and `dbias[M] += ...`, in place; no output."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dweight: MutableInputTensor,
        dbias: MutableInputTensor[dtype=dweight.dtype, rank=1, ...],
        x: InputTensor[dtype=dweight.dtype, rank=dweight.rank, ...],
        dy: InputTensor[dtype=dweight.dtype, rank=dweight.rank, ...],
        geometry: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dweight.dtype]
        var c = _sizes(x, dy, ptr(geometry))
        convolution_weight_grad(
            c,
            rebind[P](dweight.unsafe_ptr()),
            True,
            rebind[P](dbias.unsafe_ptr()),
            rebind[P](x.unsafe_ptr()),
            rebind[P](dy.unsafe_ptr()),
        )


@extensibility.register("noeira.conv_weight_grad")
struct ConvWeightGrad:
    """`dweight[M, C / groups, ...] += ...`, in place; no output."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dweight: MutableInputTensor,
        x: InputTensor[dtype=dweight.dtype, rank=dweight.rank, ...],
        dy: InputTensor[dtype=dweight.dtype, rank=dweight.rank, ...],
        geometry: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dweight.dtype]
        var c = _sizes(x, dy, ptr(geometry))
        var dw = rebind[P](dweight.unsafe_ptr())
        convolution_weight_grad(c, dw, False, dw, rebind[P](x.unsafe_ptr()), rebind[P](dy.unsafe_ptr()))


@extensibility.register("noeira.add_channel_sums")
struct AddChannelSums:
    """`sums[C] +=` the sum of x[N, C, ...] over all axes but the second, in place; no output."""

    @staticmethod
    def execute[
        target: StaticString
    ](sums: MutableInputTensor[rank=1, ...], x: InputTensor[dtype=sums.dtype, ...], ctx: DeviceContext,) raises:
        cpu_only[target]()
        comptime P = Ptr[sums.dtype]
        add_channel_sums(
            rebind[P](sums.unsafe_ptr()),
            rebind[P](x.unsafe_ptr()),
            x.dim_size(0),
            x.dim_size(1),
            _height(x) * x.dim_size(x.rank - 1),
        )
