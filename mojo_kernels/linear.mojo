"""Linear layers and activations as MAX custom ops.

    y = act(x W + b)        x [..., K], W [K, N], b [N]
    dx = dz W^T             dW += x^T dz        db += sum of dz over rows

Thin wrappers: they collapse leading dimensions and hand pointers and run-time sizes to `gemm`.
float32 and float64; or activations and weights in bfloat16 with gradients of parameters in float32.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext
from std.math import ceildiv

from .activation import IDENTITY, activate_rows, activation_grad_rows
from .gemm import Gemm, gemm
from .gemm_bf16 import GemmBF16, gemm_bf16
from .gemm_reduce import add_column_sums
from .memory import Ptr
from .target import cpu_only
from .threads import parallel_for, worthwhile_parts


@always_inline
def _rows(size: Int, features: Int) -> Int:
    """The product of the leading dimensions."""
    return size // features if features > 0 else 0


@no_inline
def linear[
    dtype: DType
](
    y: Ptr[dtype],
    z: Ptr[dtype],
    x: Ptr[dtype],
    weight: Ptr[dtype],
    has_bias: Bool,
    bias: Ptr[dtype],
    rows: Int,
    in_features: Int,
    out_features: Int,
    activation: Int,
):
    """`z = x W + b` and `y = act(z)`, row-major; z may be y."""
    comptime if dtype == DType.bfloat16:
        comptime P = Ptr[DType.bfloat16]
        gemm_bf16(
            GemmBF16(
                False,
                rebind[Ptr[DType.float32]](y.unsafe_bitcast[Float32]()),
                rebind[P](y),
                y != z,
                rebind[P](z),
                out_features,
                rebind[P](x),
                in_features,
                1,
                rebind[P](weight),
                out_features,
                1,
                rows,
                out_features,
                in_features,
                has_bias,
                rebind[P](bias),
                activation,
            )
        )
    else:
        gemm(
            Gemm(
                z,
                out_features,
                x,
                in_features,
                1,
                weight,
                out_features,
                1,
                rows,
                out_features,
                in_features,
                False,
                has_bias,
                bias,
                1,
                activation,
                y,
                False,
            )
        )


@no_inline
def linear_input_grad[
    dtype: DType
](
    dx: Ptr[dtype],
    dz: Ptr[dtype],
    weight: Ptr[dtype],
    saved: Ptr[dtype],
    rows: Int,
    in_features: Int,
    out_features: Int,
    activation: Int,
):
    """`dx = (dz W^T) act'(saved)`, where saved has the shape of dx and is unused for the identity."""
    comptime if dtype == DType.bfloat16:
        comptime P = Ptr[DType.bfloat16]
        var out_ = rebind[P](dx)
        gemm_bf16(
            GemmBF16(
                False,
                rebind[Ptr[DType.float32]](dx.unsafe_bitcast[Float32]()),
                out_,
                False,
                out_,
                in_features,
                rebind[P](dz),
                out_features,
                1,
                rebind[P](weight),
                1,
                out_features,
                rows,
                in_features,
                out_features,
                False,
                out_,
                IDENTITY,
            )
        )
        if activation != IDENTITY:
            _activation_grad(activation, dx, saved, dx, rows * in_features)
    else:
        gemm(
            Gemm(
                dx,
                in_features,
                dz,
                out_features,
                1,
                weight,
                1,
                out_features,
                rows,
                in_features,
                out_features,
                False,
                False,
                dx,
                1,
                activation,
                saved,
                True,
            )
        )


@no_inline
def linear_weight_grad[
    dtype: DType, source: DType
](dweight: Ptr[dtype], x: Ptr[source], dz: Ptr[source], rows: Int, in_features: Int, out_features: Int):
    """`dW += x^T dz`, in float32 where x and dz are bfloat16."""
    comptime if source == DType.bfloat16:
        comptime P = Ptr[DType.bfloat16]
        comptime assert dtype == DType.float32, "the gradient of a bfloat16 linear layer is kept in float32"
        var a = rebind[P](x)
        gemm_bf16(
            GemmBF16(
                True,
                rebind[Ptr[DType.float32]](dweight),
                a,
                False,
                a,
                out_features,
                a,
                1,
                in_features,
                rebind[P](dz),
                out_features,
                1,
                in_features,
                out_features,
                rows,
                False,
                a,
                IDENTITY,
            )
        )
    else:
        comptime assert dtype == source, "the gradient has the dtype of the layer"
        gemm(
            Gemm(
                dweight,
                out_features,
                rebind[Ptr[dtype]](x),
                1,
                in_features,
                rebind[Ptr[dtype]](dz),
                out_features,
                1,
                in_features,
                out_features,
                rows,
                True,
                False,
                dweight,
                1,
                IDENTITY,
                dweight,
                False,
            )
        )


comptime ELEMENTWISE_FLOPS = 16
"""What one element of an activation costs, in multiply-adds of a matrix product."""


@no_inline
def _activation[dtype: DType](code: Int, x: Ptr[dtype], y: Ptr[dtype], size: Int):
    """`y = act(x)` over size contiguous elements."""
    var parts = worthwhile_parts(size * ELEMENTWISE_FLOPS)
    var step = ceildiv(ceildiv(size, 64), parts) * 64

    def part(i: Int) {imm}:
        var first = min(size, i * step)
        var count = min(step, size - first)
        activate_rows(code, x.unsafe_offset(first), count, y.unsafe_offset(first), count, 1, count)

    parallel_for(part, parts)


@no_inline
def _activation_grad[dtype: DType](code: Int, dy: Ptr[dtype], saved: Ptr[dtype], dx: Ptr[dtype], size: Int):
    """`dx = dy act'(saved)` over size contiguous elements."""
    var parts = worthwhile_parts(size * ELEMENTWISE_FLOPS)
    var step = ceildiv(ceildiv(size, 64), parts) * 64

    def part(i: Int) {imm}:
        var first = min(size, i * step)
        var count = min(step, size - first)
        activation_grad_rows(
            code,
            dy.unsafe_offset(first),
            count,
            saved.unsafe_offset(first),
            count,
            dx.unsafe_offset(first),
            count,
            1,
            count,
        )

    parallel_for(part, parts)


# ---------------------------------------------------------------------------------------------------------------------
# Registrations
# ---------------------------------------------------------------------------------------------------------------------


@extensibility.register("noeira.linear")
struct Linear:
    """`y[..., N] = act(x[..., K] weight[K, N] + bias[N])`."""

    @staticmethod
    def execute[
        target: StaticString, activation: Int
    ](
        y: OutputTensor,
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        weight: InputTensor[dtype=y.dtype, rank=2, ...],
        bias: InputTensor[dtype=y.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        var k = weight.dim_size(0)
        var n = weight.dim_size(1)
        var out_ = rebind[P](y.unsafe_ptr())
        linear(
            out_,
            out_,
            rebind[P](x.unsafe_ptr()),
            rebind[P](weight.unsafe_ptr()),
            True,
            rebind[P](bias.unsafe_ptr()),
            _rows(y.size(), n),
            k,
            n,
            activation,
        )


@extensibility.register("noeira.linear_pre")
struct LinearPre:
    """`z = x[..., K] weight[K, N] + bias[N] and y = act(z)`."""

    @staticmethod
    def execute[
        target: StaticString, activation: Int
    ](
        y: OutputTensor,
        z: OutputTensor[dtype=y.dtype, rank=y.rank, ...],
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        weight: InputTensor[dtype=y.dtype, rank=2, ...],
        bias: InputTensor[dtype=y.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        var k = weight.dim_size(0)
        var n = weight.dim_size(1)
        linear(
            rebind[P](y.unsafe_ptr()),
            rebind[P](z.unsafe_ptr()),
            rebind[P](x.unsafe_ptr()),
            rebind[P](weight.unsafe_ptr()),
            True,
            rebind[P](bias.unsafe_ptr()),
            _rows(y.size(), n),
            k,
            n,
            activation,
        )


@extensibility.register("noeira.linear_no_bias")
struct LinearNoBias:
    """`y[..., N] = act(x[..., K] weight[K, N])`."""

    @staticmethod
    def execute[
        target: StaticString, activation: Int
    ](
        y: OutputTensor,
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        weight: InputTensor[dtype=y.dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        var k = weight.dim_size(0)
        var n = weight.dim_size(1)
        var out_ = rebind[P](y.unsafe_ptr())
        linear(
            out_,
            out_,
            rebind[P](x.unsafe_ptr()),
            rebind[P](weight.unsafe_ptr()),
            False,
            out_,
            _rows(y.size(), n),
            k,
            n,
            activation,
        )


@extensibility.register("noeira.linear_input_grad")
struct LinearInputGrad:
    """`dx[..., K] = dz[..., N] weight[K, N]^T`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor,
        dz: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        weight: InputTensor[dtype=dx.dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        var k = weight.dim_size(0)
        var n = weight.dim_size(1)
        linear_input_grad(
            rebind[P](dx.unsafe_ptr()),
            rebind[P](dz.unsafe_ptr()),
            rebind[P](weight.unsafe_ptr()),
            rebind[P](dx.unsafe_ptr()),
            _rows(dx.size(), k),
            k,
            n,
            IDENTITY,
        )


@extensibility.register("noeira.linear_input_grad_act")
struct LinearInputGradAct:
    """`dx[..., K] = (dz[..., N] weight[K, N]^T) act'(saved[..., K])`, the activation being that of the layer below."""

    @staticmethod
    def execute[
        target: StaticString, activation: Int
    ](
        dx: OutputTensor,
        dz: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        weight: InputTensor[dtype=dx.dtype, rank=2, ...],
        saved: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        var k = weight.dim_size(0)
        var n = weight.dim_size(1)
        linear_input_grad(
            rebind[P](dx.unsafe_ptr()),
            rebind[P](dz.unsafe_ptr()),
            rebind[P](weight.unsafe_ptr()),
            rebind[P](saved.unsafe_ptr()),
            _rows(dx.size(), k),
            k,
            n,
            activation,
        )


@extensibility.register("noeira.linear_param_grad")
struct LinearParamGrad:
    """`dweight[K, N] += x[..., K]^T dz[..., N]` and `dbias[N] +=` the sum of dz over its rows, in place; no output."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dweight: MutableInputTensor[rank=2, ...],
        dbias: MutableInputTensor[dtype=dweight.dtype, rank=1, ...],
        x: InputTensor,
        dz: InputTensor[dtype=x.dtype, rank=x.rank, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dweight.dtype]
        comptime S = Ptr[x.dtype]
        var k = dweight.dim_size(0)
        var n = dweight.dim_size(1)
        var grad = rebind[S](dz.unsafe_ptr())
        var rows = _rows(dz.size(), n)
        linear_weight_grad(rebind[P](dweight.unsafe_ptr()), rebind[S](x.unsafe_ptr()), grad, rows, k, n)
        add_column_sums(rebind[P](dbias.unsafe_ptr()), grad, n, rows, n)


@extensibility.register("noeira.linear_weight_grad")
struct LinearWeightGrad:
    """`dweight[K, N] += x[..., K]^T dz[..., N]`, in place; no output."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dweight: MutableInputTensor[rank=2, ...],
        x: InputTensor,
        dz: InputTensor[dtype=x.dtype, rank=x.rank, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dweight.dtype]
        comptime S = Ptr[x.dtype]
        var k = dweight.dim_size(0)
        var n = dweight.dim_size(1)
        linear_weight_grad(
            rebind[P](dweight.unsafe_ptr()),
            rebind[S](x.unsafe_ptr()),
            rebind[S](dz.unsafe_ptr()),
            _rows(dz.size(), n),
            k,
            n,
        )


@extensibility.register("noeira.activation")
struct Activation:
    """`y = act(x)`, elementwise."""

    @staticmethod
    def execute[
        target: StaticString, activation: Int
    ](y: OutputTensor, x: InputTensor[dtype=y.dtype, rank=y.rank, ...], ctx: DeviceContext) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        _activation(activation, rebind[P](x.unsafe_ptr()), rebind[P](y.unsafe_ptr()), y.size())


@extensibility.register("noeira.activation_grad")
struct ActivationGrad:
    """`dx = dy act'(saved)`; saved is y for relu, tanh and sigmoid, x for silu, mish, gelu and gelu_tanh."""

    @staticmethod
    def execute[
        target: StaticString, activation: Int
    ](
        dx: OutputTensor,
        dy: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        saved: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        _activation_grad(
            activation,
            rebind[P](dy.unsafe_ptr()),
            rebind[P](saved.unsafe_ptr()),
            rebind[P](dx.unsafe_ptr()),
            dx.size(),
        )
