"""Activation functions and their derivatives: float32, float64, and bfloat16 computed in float32.

    code  0 identity  1 relu  2 tanh  3 sigmoid  4 silu  5 mish  6 gelu (erf)  7 gelu_tanh

`activate_rows` and `activation_grad_rows` apply one of them to a strided matrix: the code is a run-time value that
is switched on once, outside the loops, so that one compiled body per dtype serves every layer.

All but relu rest on one primitive, `_expm1_parts`: with x = n ln2 + r and |r| <= ln2 / 2 it gives 2^n and a
polynomial p = exp(r) - 1, from which exp(x) = 2^n + 2^n p and expm1(x) = (2^n - 1) + 2^n p lose no digits.
Every formula is the one without cancellation (the normal tail is evaluated as a tail, never as 1 - erf), and each
stays finite for any finite input. NaN propagates.
"""

from std.memory import bitcast
from std.sys.info import simd_width_of

from .memory import COMPUTE, Ptr, lanes_below, load_lanes, store_lanes

comptime IDENTITY = 0
comptime RELU = 1
comptime TANH = 2
comptime SIGMOID = 3
comptime SILU = 4
comptime MISH = 5
comptime GELU = 6
comptime GELU_TANH = 7

comptime SQRT_2_OVER_PI = 0.79788456080286535588
comptime INV_SQRT_2PI = 0.39894228040143267794
comptime GELU_CUBIC = 0.044715


# ---------------------------------------------------------------------------------------------------------------------
# exp and its relatives
# ---------------------------------------------------------------------------------------------------------------------


@always_inline
def _horner[dtype: DType, width: SIMDLength, n: Int](x: SIMD[dtype, width], c: Array[Float64, n]) -> SIMD[dtype, width]:
    """`c[0] + c[1] x + ... + c[n-1] x^(n-1)`."""
    var y = SIMD[dtype, width](c[n - 1].cast[dtype]())
    comptime for i in range(1, n):
        y = y.fma(x, SIMD[dtype, width](c[n - 1 - i].cast[dtype]()))
    return y


@always_inline
def _clamp[dtype: DType, width: SIMDLength](x: SIMD[dtype, width], lo: Float64, hi: Float64) -> SIMD[dtype, width]:
    """`x limited to [lo, hi]`; NaN stays NaN, which min and max do not promise."""
    var l = SIMD[dtype, width](lo.cast[dtype]())
    var h = SIMD[dtype, width](hi.cast[dtype]())
    var y = x.lt(l).select(l, x)
    return y.gt(h).select(h, y)


@always_inline
def _pow2[
    dtype: DType, width: SIMDLength
](n: SIMD[DType.int64 if dtype == DType.float64 else DType.int32, width]) -> SIMD[dtype, width]:
    """2^n for n in the range of normal numbers."""
    comptime if dtype == DType.float64:
        return bitcast[dtype, width]((n + 1023) << 52)
    else:
        return bitcast[dtype, width]((n + 127) << 23)


@always_inline
def _expm1_parts[
    dtype: DType, width: SIMDLength
](
    x: SIMD[dtype, width],
) -> Tuple[
    SIMD[DType.int64 if dtype == DType.float64 else DType.int32, width], SIMD[dtype, width]
]:
    """(n, p) with exp(x) = 2^n (1 + p), |p| < 0.42. x must lie where 2^n stays within twice the exponent range."""
    comptime V = SIMD[dtype, width]
    comptime int = DType.int64 if dtype == DType.float64 else DType.int32
    comptime log2e = 1.4426950408889634074
    # Adding and subtracting 1.5 * 2^(mantissa bits) rounds to an integer and leaves that integer in the low bits.
    comptime magic = 6755399441055744.0 if dtype == DType.float64 else 12582912.0
    var t = x.fma(V(log2e), V(magic))
    var n = bitcast[int, width](t) - bitcast[int, width](V(magic))
    var nf = t - V(magic)
    comptime if dtype == DType.float64:
        var r = nf.fma(V(-0.69314718036912381649), x)
        r = nf.fma(V(-1.90821492927058770002e-10), r)
        comptime c: Array[Float64, 12] = [
            0.5,
            0.16666666666666666667,
            0.041666666666666676865,
            0.0083333333333333340131,
            0.0013888888888879003084,
            0.00019841269841263251867,
            0.000024801587336630946966,
            2.7557319247344509509e-6,
            2.7557263077309411451e-7,
            2.5052070959803661989e-8,
            2.0918212319133978201e-9,
            1.6086677666787361503e-10,
        ]
        return (n, (r * r).fma(_horner(r, materialize[c]()), r))
    else:
        var r = nf.fma(V(-0.693145751953125), x)
        r = nf.fma(V(-1.42860682030941723212e-6), r)
        comptime c: Array[Float64, 6] = [
            0.500000001354,
            0.166666666817,
            0.0416664641974,
            0.00833331084465,
            0.00139337307158,
            0.00019891080464,
        ]
        return (n, (r * r).fma(_horner(r, materialize[c]()), r))


@always_inline
def exp[dtype: DType, width: SIMDLength](x: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """`exp(x)`: overflows to inf, underflows gradually."""
    comptime lo = -746.0 if dtype == DType.float64 else -104.0
    comptime hi = 710.0 if dtype == DType.float64 else 89.0
    var parts = _expm1_parts(_clamp(x, lo, hi))
    # Two steps, because 2^n itself may lie outside the normal range.
    var half = parts[0] >> 1
    var first = _pow2[dtype, width](half)
    return parts[1].fma(first, first) * _pow2[dtype, width](parts[0] - half)


@always_inline
def expm1_nonpositive[dtype: DType, width: SIMDLength](x: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """`exp(x) - 1` for x <= 0, accurate to the last digits near zero."""
    var parts = _expm1_parts(_clamp(x, -45.0, 0.0))
    var scale = _pow2[dtype, width](parts[0])
    return parts[1].fma(scale, scale - 1)


# ---------------------------------------------------------------------------------------------------------------------
# The functions
# ---------------------------------------------------------------------------------------------------------------------


@always_inline
def tanh[dtype: DType, width: SIMDLength](x: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """In float64 -t / (t + 2) with t = expm1(-2|x|); in float32 x + x^3 P(x^2) near zero, else 1 - 2 e / (1 + e) with
    e = exp(-2|x|), which is closer to the rounded value."""
    comptime V = SIMD[dtype, width]
    comptime if dtype == DType.float32:
        comptime c: Array[Float64, 8] = [
            -0.333333331567,
            0.133333106555,
            -0.0539634147544,
            0.0218295488431,
            -0.00869784759281,
            0.00320680338685,
            -0.000923500846348,
            0.000142793187996,
        ]
        var s = x * x
        var near = (x * s).fma(_horner(s, materialize[c]()), x)
        var parts = _expm1_parts(_clamp(-2 * abs(x), -45.0, 0.0))
        var scale = _pow2[dtype, width](parts[0])
        var e = parts[1].fma(scale, scale)
        var far = 1 - 2 * e / (1 + e)
        return abs(x).lt(1).select(near, x.lt(0).select(-far, far))
    else:
        var t = expm1_nonpositive(-2 * abs(x))
        var y = t / (t + 2)
        return x.gt(0).select(-y, y)


@always_inline
def sigmoid[dtype: DType, width: SIMDLength](x: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + exp(-x))


@always_inline
def _finite[dtype: DType, width: SIMDLength](x: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """`x with infinities made finite, so that a factor that vanishes there gives 0 and not NaN`."""
    return _clamp(x, -1e30, 1e30)


@always_inline
def _finite_below[dtype: DType, width: SIMDLength](x: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """`x with -inf made finite`: there the gate is 0, and 0 is the limit."""
    var l = SIMD[dtype, width](Float64(-1e30).cast[dtype]())
    return x.lt(l).select(l, x)


@always_inline
def _mish_parts[
    dtype: DType, width: SIMDLength
](x: SIMD[dtype, width]) -> Tuple[SIMD[dtype, width], SIMD[dtype, width]]:
    """(e, w) with e = exp(x) and w = e (e + 2), so that tanh(log(1 + e)) = w / (w + 2)."""
    var e = exp(_clamp(x, -1e30, 40.0 if dtype == DType.float64 else 20.0))
    return (e, e * (e + 2))


@always_inline
def _normal_tail[
    dtype: DType, width: SIMDLength
](x: SIMD[dtype, width],) -> Tuple[SIMD[dtype, width], SIMD[dtype, width]]:
    """(Q, g) with g = exp(-x^2 / 2) and Q the standard normal probability above |x|.

    Q / g is smooth and decays slowly: a polynomial in t = (|x| - 4) / (|x| + 4) holds it to the last digit. The
    rounding error of x^2, which exp would magnify, is recovered with an fma.
    """
    comptime V = SIMD[dtype, width]
    var u = _clamp(abs(x), 0.0, 40.0 if dtype == DType.float64 else 15.0)
    var t = (u - 4) / (u + 4)
    var s = u * u
    var s_low = u.fma(u, -s)
    var g = exp(V(-0.5) * s)
    g = g.fma(V(-0.5) * s_low, g)
    comptime if dtype == DType.float64:
        comptime c: Array[Float64, 26] = [
            0.094410641301968936068,
            -0.17039772154845544998,
            0.12437925533926352826,
            -0.07170740733773393598,
            0.030864804106313299058,
            -0.0084920954822111839536,
            0.00050756207515450688036,
            0.00063881385320953315961,
            -0.00018718427083182802503,
            -0.000045554907065209035609,
            0.000028648352532187628651,
            4.6316263526947354644e-6,
            -4.3035788404110542725e-6,
            -8.2964341689810712351e-7,
            6.6152447893679272005e-7,
            2.0652305769072118229e-7,
            -9.4123692236440086469e-8,
            -5.3581569679462103388e-8,
            9.2006789892006233578e-9,
            1.2648738522548487013e-8,
            3.899789021969231111e-10,
            -2.4751823344346206202e-9,
            -3.7087006958094188805e-10,
            3.5071941476383855329e-10,
            5.3865259548807632493e-11,
            -2.6443164989216064968e-11,
        ]
        return (_horner(t, materialize[c]()) * g, g)
    else:
        comptime c: Array[Float64, 12] = [
            0.09441064261,
            -0.1703977203,
            0.1243791601,
            -0.07170744266,
            0.03086593706,
            -0.008491804367,
            0.0005025865375,
            0.0006377692003,
            -0.0001771117683,
            -4.367325281e-5,
            1.878671765e-5,
            2.871479186e-6,
        ]
        return (_horner(t, materialize[c]()) * g, g)


@always_inline
def _gelu_tanh_gate[dtype: DType, width: SIMDLength](x: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """(1 + tanh(u)) / 2 = sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    comptime V = SIMD[dtype, width]
    var cubic = (x * x).fma(V(GELU_CUBIC), V(1))
    return sigmoid(V(2 * SQRT_2_OVER_PI) * x * cubic)


@always_inline
def activate[dtype: DType, width: SIMDLength, code: Int](x: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """The activation `code` of x."""
    comptime V = SIMD[dtype, width]
    comptime if code == RELU:
        return x.le(0).select(V(0), x)
    elif code == TANH:
        return tanh(x)
    elif code == SIGMOID:
        return sigmoid(x)
    elif code == SILU:
        return _finite_below(x) / (1 + exp(-x))
    elif code == MISH:
        var _, w = _mish_parts(x)
        return _finite_below(x) * (w / (w + 2))
    elif code == GELU:
        var q, _ = _normal_tail(x)
        return _finite_below(x) * x.lt(0).select(q, 1 - q)
    elif code == GELU_TANH:
        return _finite_below(x) * _gelu_tanh_gate(x)
    else:
        return x


@always_inline
def activation_derivative[dtype: DType, width: SIMDLength, code: Int](saved: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """The derivative of the activation `code`: at y = saved for relu, tanh and sigmoid, at x = saved for the others."""
    comptime V = SIMD[dtype, width]
    comptime if code == RELU:
        return saved.le(0).select(V(0), V(1))
    elif code == TANH:
        return (-saved).fma(saved, V(1))
    elif code == SIGMOID:
        return saved * (1 - saved)
    elif code == SILU:
        # sigmoid(x) (1 + x sigmoid(-x))
        var s = sigmoid(saved)
        return s * _finite(saved).fma(sigmoid(-saved), V(1))
    elif code == MISH:
        # t + x (1 - t^2) sigmoid(x), with 1 - t^2 = 4 (1 + e)^2 / (w + 2)^2 and sigmoid(x) = e / (1 + e)
        var e, w = _mish_parts(saved)
        var d = w + 2
        return _clamp(saved, -1e30, 40.0).fma(4 * (1 + e) * e / d / d, w / d)
    elif code == GELU:
        var q, g = _normal_tail(saved)
        return (_finite(saved) * V(INV_SQRT_2PI)).fma(g, saved.lt(0).select(q, 1 - q))
    elif code == GELU_TANH:
        # s + x s (1 - s) 2 u', which has long reached 0 or 1 where x is clamped
        var x = _clamp(saved, -100.0, 100.0)
        var s = _gelu_tanh_gate(x)
        var slope = (x * x).fma(V(2 * SQRT_2_OVER_PI * 3 * GELU_CUBIC), V(2 * SQRT_2_OVER_PI))
        return (x * slope).fma(s * _gelu_tanh_gate(-x), s)
    else:
        return V(1)


# ---------------------------------------------------------------------------------------------------------------------
# Strided loops
# ---------------------------------------------------------------------------------------------------------------------


@always_inline
def _activate_vector[
    dtype: DType, width: SIMDLength, code: Int, masked: Bool
](src: Ptr[dtype], dst: Ptr[dtype], mask: SIMD[DType.bool, width]):
    var x = load_lanes[dtype, width, masked](src, mask)
    store_lanes[dtype, width, masked](activate[code=code](x), dst, mask)


def _activate_rows[
    dtype: DType, code: Int
](src: Ptr[dtype], src_stride: Int, dst: Ptr[dtype], dst_stride: Int, rows: Int, cols: Int):
    comptime W = simd_width_of[COMPUTE[dtype]]()
    var tail = cols % W
    var mask = lanes_below[COMPUTE[dtype], W](tail)
    for i in range(rows):
        var s = src.unsafe_offset(i * src_stride)
        var d = dst.unsafe_offset(i * dst_stride)
        for j in range(0, cols - tail, W):
            _activate_vector[dtype, W, code, False](s.unsafe_offset(j), d.unsafe_offset(j), mask)
        if tail > 0:
            var j = cols - tail
            _activate_vector[dtype, W, code, True](s.unsafe_offset(j), d.unsafe_offset(j), mask)


@always_inline
def _activation_grad_vector[
    dtype: DType, width: SIMDLength, code: Int, masked: Bool
](grad: Ptr[dtype], saved: Ptr[dtype], dst: Ptr[dtype], mask: SIMD[DType.bool, width]):
    var dy = load_lanes[dtype, width, masked](grad, mask)
    var slope = activation_derivative[code=code](load_lanes[dtype, width, masked](saved, mask))
    store_lanes[dtype, width, masked](dy * slope, dst, mask)


def _activation_grad_rows[
    dtype: DType, code: Int
](
    grad: Ptr[dtype],
    grad_stride: Int,
    saved: Ptr[dtype],
    saved_stride: Int,
    dst: Ptr[dtype],
    dst_stride: Int,
    rows: Int,
    cols: Int,
):
    comptime W = simd_width_of[COMPUTE[dtype]]()
    var tail = cols % W
    var mask = lanes_below[COMPUTE[dtype], W](tail)
    for i in range(rows):
        var g = grad.unsafe_offset(i * grad_stride)
        var s = saved.unsafe_offset(i * saved_stride)
        var d = dst.unsafe_offset(i * dst_stride)
        for j in range(0, cols - tail, W):
            _activation_grad_vector[dtype, W, code, False](
                g.unsafe_offset(j), s.unsafe_offset(j), d.unsafe_offset(j), mask
            )
        if tail > 0:
            var j = cols - tail
            _activation_grad_vector[dtype, W, code, True](
                g.unsafe_offset(j), s.unsafe_offset(j), d.unsafe_offset(j), mask
            )


@no_inline
def activate_rows[
    dtype: DType
](code: Int, src: Ptr[dtype], src_stride: Int, dst: Ptr[dtype], dst_stride: Int, rows: Int, cols: Int):
    """`dst[i, j] = act(src[i, j])` over a rows x cols matrix; src and dst may be the same."""
    comptime for c in range(8):
        if code == c:
            return _activate_rows[dtype, c](src, src_stride, dst, dst_stride, rows, cols)


@no_inline
def activation_grad_rows[
    dtype: DType
](
    code: Int,
    grad: Ptr[dtype],
    grad_stride: Int,
    saved: Ptr[dtype],
    saved_stride: Int,
    dst: Ptr[dtype],
    dst_stride: Int,
    rows: Int,
    cols: Int,
):
    """`dst[i, j] = grad[i, j] act'(saved[i, j])` over a rows x cols matrix; dst may be grad or saved."""
    comptime for c in range(8):
        if code == c:
            return _activation_grad_rows[dtype, c](grad, grad_stride, saved, saved_stride, dst, dst_stride, rows, cols)
