"""GRU and LSTM over whole sequences, forward and backward through time.

    GRU   r = s(gx_r + gh_r)   z = s(gx_z + gh_z)   n = tanh(gx_n + r gh_n)   h' = (1 - z) n + z h
    LSTM  i, f, o = s(gx + gh)   g = tanh(gx_g + gh_g)   c' = f c + i g   h' = o tanh(c')

with gh = h W + b. The products with the inputs, gx = x U + a, are one matrix product over all steps, made before; so
are all gradients of parameters, after. What is left walks through time here: threads divide the samples, and each part
runs its steps by itself.
"""

from std.sys.info import simd_width_of

from .activation import IDENTITY, sigmoid, tanh
from .gemm import Gemm, gemm
from .gemm_pack import copy_transposed
from .gemm_vector import fill_zero
from .memory import COMPUTE, Ptr, allocate, at, copy_elements, lanes_below, load_lanes, release, store_lanes
from .threads import parallel_for, worthwhile_parts

comptime GRU_KEPT = 4
"""What the GRU keeps of a step, each as wide as h: r, z, n, gh_n."""
comptime LSTM_KEPT = 5
"""What the LSTM keeps of a step, each as wide as h: i, f, g, o, c'."""


@fieldwise_init
struct Sequence(ImplicitlyCopyable):
    """Sizes: samples, steps, and the width of h."""

    var batch: Int
    var steps: Int
    var hidden: Int

    def parts(self, gates: Int) -> Int:
        """Into how many parts the samples should be divided."""
        return min(
            max(1, self.batch), worthwhile_parts(2 * self.batch * self.steps * gates * self.hidden * self.hidden)
        )


@fieldwise_init
struct Before[dtype: DType](ImplicitlyCopyable):
    """The state before each step: rows of an initial state, then rows of what was computed."""

    var first: Ptr[Self.dtype]
    var first_stride: Int
    """From sample to sample; 0 where the state begins with the same zeros in each."""
    var rest: Ptr[Self.dtype]
    var sample: Int
    """From sample to sample in `rest`."""
    var step: Int

    @always_inline
    def at(self, b: Int, t: Int) -> Ptr[Self.dtype]:
        """The state of sample b before step t."""
        if t == 0:
            return self.first.unsafe_offset(b * self.first_stride)
        return self.rest.unsafe_offset(b * self.sample + (t - 1) * self.step)

    @always_inline
    def stride(self, t: Int) -> Int:
        """From sample to sample before step t."""
        return self.first_stride if t == 0 else self.sample


@no_inline
def _products[
    dtype: DType
](
    gh: Ptr[dtype],
    h: Ptr[dtype],
    stride: Int,
    w: Ptr[dtype],
    bias: Ptr[dtype],
    has_bias: Bool,
    rows: Int,
    hidden: Int,
    gates: Int,
):
    """`gh = h W + b` of neighbouring samples."""
    var cols = gates * hidden
    gemm(Gemm(gh, cols, h, stride, 1, w, cols, 1, rows, cols, hidden, False, has_bias, bias, 1, IDENTITY, gh, False), 1)


@no_inline
def _transposed[dtype: DType](w: Ptr[dtype], hidden: Int, gates: Int) -> Ptr[dtype]:
    """W^T [gates hidden, hidden], its rows `_row(hidden)` apart."""
    var width = _row[dtype](hidden)
    var result = allocate[dtype](gates * hidden * width)
    copy_transposed(result, width, w, gates * hidden, hidden, gates * hidden)
    return result


@always_inline
def _row[dtype: DType](hidden: Int) -> Int:
    comptime W = simd_width_of[dtype]()
    return (hidden + W - 1) // W * W


@no_inline
def _back[
    dtype: DType
](carry: Ptr[dtype], grad: Ptr[dtype], stride: Int, wt: Ptr[dtype], rows: Int, hidden: Int, gates: Int):
    """`carry += dgh W^T` of neighbouring samples."""
    gemm(
        Gemm(
            carry,
            hidden,
            grad,
            stride,
            1,
            wt,
            _row[dtype](hidden),
            1,
            rows,
            hidden,
            gates * hidden,
            True,
            False,
            carry,
            1,
            IDENTITY,
            carry,
            False,
        ),
        1,
    )


@no_inline
def _copy_rows[dtype: DType](dst: Ptr[dtype], dst_stride: Int, src: Ptr[dtype], src_stride: Int, rows: Int, cols: Int):
    """Rows of a matrix."""
    for r in range(rows):
        copy_elements(dst.unsafe_offset(r * dst_stride), src.unsafe_offset(r * src_stride), cols)


# ---------------------------------------------------------------------------------------------------------------------
# GRU
# ---------------------------------------------------------------------------------------------------------------------


@no_inline
def _gru_step[
    dtype: DType
](y: Ptr[dtype], kept: Ptr[dtype], gx: Ptr[dtype], gh: Ptr[dtype], h: Ptr[dtype], hidden: Int):
    """One sample's step."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    var mask = lanes_below[C, W](hidden % W)

    @__parameter
    @always_inline
    def element[masked: Bool](i: Int):
        @__parameter
        @always_inline
        def read(p: Ptr[dtype], gate: Int) -> SIMD[C, W]:
            return load_lanes[dtype, W, masked](p.unsafe_offset(gate * hidden + i), mask)

        @__parameter
        @always_inline
        def write(p: Ptr[dtype], gate: Int, value: SIMD[C, W]):
            store_lanes[dtype, W, masked](value, p.unsafe_offset(gate * hidden + i), mask)

        var r = sigmoid(read(gx, 0) + read(gh, 0))
        var z = sigmoid(read(gx, 1) + read(gh, 1))
        var own = read(gh, 2)
        var n = tanh(read(gx, 2) + r * own)
        write(kept, 0, r)
        write(kept, 1, z)
        write(kept, 2, n)
        write(kept, 3, own)
        write(y, 0, (1 - z) * n + z * read(h, 0))

    var i = 0
    while i + W <= hidden:
        element[False](i)
        i += W
    if i < hidden:
        element[True](i)


@no_inline
def gru[
    dtype: DType
](
    y: Ptr[dtype],
    kept: Ptr[dtype],
    before: Ptr[dtype],
    gx: Ptr[dtype],
    h0: Ptr[dtype],
    has_h0: Bool,
    w: Ptr[dtype],
    bias: Ptr[dtype],
    has_bias: Bool,
    s: Sequence,
):
    """All steps: y [B, T, H], kept [B, T, 4 H], and the state before each step [B, T, H]."""
    var size = s.hidden
    var parts = s.parts(3)

    def part(p: Int) {imm}:
        var first = p * s.batch // parts
        var rows = (p + 1) * s.batch // parts - first
        if rows == 0:
            return
        var gh = allocate[dtype](rows * 3 * size + size)
        var zeros = gh.unsafe_offset(rows * 3 * size)
        fill_zero(zeros, size)
        var state = Before(h0 if has_h0 else zeros, size if has_h0 else 0, y, s.steps * size, size)
        for t in range(s.steps):
            _products(gh, state.at(first, t), state.stride(t), w, bias, has_bias, rows, size, 3)
            for b in range(rows):
                var i = (first + b) * s.steps + t
                var h = state.at(first + b, t)
                copy_elements(before.unsafe_offset(i * size), h, size)
                _gru_step(
                    y.unsafe_offset(i * size),
                    kept.unsafe_offset(i * GRU_KEPT * size),
                    gx.unsafe_offset(i * 3 * size),
                    gh.unsafe_offset(b * 3 * size),
                    h,
                    size,
                )
        release(gh)

    parallel_for(part, parts)


@no_inline
def _gru_step_grad[
    dtype: DType
](dgx: Ptr[dtype], dgh: Ptr[dtype], carry: Ptr[dtype], dy: Ptr[dtype], kept: Ptr[dtype], h: Ptr[dtype], hidden: Int,):
    """One sample's step: gradients of gx and gh, and of the state before it but for W's share."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    var mask = lanes_below[C, W](hidden % W)

    @__parameter
    @always_inline
    def element[masked: Bool](i: Int):
        @__parameter
        @always_inline
        def read(p: Ptr[dtype], gate: Int) -> SIMD[C, W]:
            return load_lanes[dtype, W, masked](p.unsafe_offset(gate * hidden + i), mask)

        @__parameter
        @always_inline
        def write(p: Ptr[dtype], gate: Int, value: SIMD[C, W]):
            store_lanes[dtype, W, masked](value, p.unsafe_offset(gate * hidden + i), mask)

        var r = read(kept, 0)
        var z = read(kept, 1)
        var n = read(kept, 2)
        var own = read(kept, 3)
        var dh = read(dy, 0) + read(carry, 0)
        var dz = dh * (read(h, 0) - n) * z * (1 - z)
        var dn = dh * (1 - z) * (1 - n * n)
        var dr = dn * own * r * (1 - r)
        write(dgx, 0, dr)
        write(dgx, 1, dz)
        write(dgx, 2, dn)
        write(dgh, 0, dr)
        write(dgh, 1, dz)
        write(dgh, 2, dn * r)
        write(carry, 0, dh * z)

    var i = 0
    while i + W <= hidden:
        element[False](i)
        i += W
    if i < hidden:
        element[True](i)


@no_inline
def gru_grad[
    dtype: DType
](
    dgx: Ptr[dtype],
    dgh: Ptr[dtype],
    dh0: Ptr[dtype],
    dy: Ptr[dtype],
    kept: Ptr[dtype],
    before: Ptr[dtype],
    w: Ptr[dtype],
    s: Sequence,
):
    """Back through all steps: dgx and dgh [B, T, 3 H], dh0 [B, H]."""
    var size = s.hidden
    var wt = _transposed(w, size, 3)
    var parts = s.parts(3)
    fill_zero(dh0, s.batch * size)

    def part(p: Int) {imm}:
        var first = p * s.batch // parts
        var rows = (p + 1) * s.batch // parts - first
        if rows == 0:
            return
        var carry = dh0.unsafe_offset(first * size)
        for back in range(s.steps):
            var t = s.steps - 1 - back
            for b in range(rows):
                var i = (first + b) * s.steps + t
                _gru_step_grad(
                    dgx.unsafe_offset(i * 3 * size),
                    dgh.unsafe_offset(i * 3 * size),
                    carry.unsafe_offset(b * size),
                    dy.unsafe_offset(i * size),
                    kept.unsafe_offset(i * GRU_KEPT * size),
                    before.unsafe_offset(i * size),
                    size,
                )
            _back(carry, dgh.unsafe_offset((first * s.steps + t) * 3 * size), s.steps * 3 * size, wt, rows, size, 3)

    parallel_for(part, parts)
    release(wt)


# ---------------------------------------------------------------------------------------------------------------------
# LSTM
# ---------------------------------------------------------------------------------------------------------------------


@no_inline
def _lstm_step[
    dtype: DType
](y: Ptr[dtype], kept: Ptr[dtype], gx: Ptr[dtype], gh: Ptr[dtype], c: Ptr[dtype], hidden: Int):
    """One sample's step."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    var mask = lanes_below[C, W](hidden % W)

    @__parameter
    @always_inline
    def element[masked: Bool](i: Int):
        @__parameter
        @always_inline
        def read(p: Ptr[dtype], gate: Int) -> SIMD[C, W]:
            return load_lanes[dtype, W, masked](p.unsafe_offset(gate * hidden + i), mask)

        @__parameter
        @always_inline
        def write(p: Ptr[dtype], gate: Int, value: SIMD[C, W]):
            store_lanes[dtype, W, masked](value, p.unsafe_offset(gate * hidden + i), mask)

        var i_ = sigmoid(read(gx, 0) + read(gh, 0))
        var f = sigmoid(read(gx, 1) + read(gh, 1))
        var g = tanh(read(gx, 2) + read(gh, 2))
        var o = sigmoid(read(gx, 3) + read(gh, 3))
        var cell = f * read(c, 0) + i_ * g
        write(kept, 0, i_)
        write(kept, 1, f)
        write(kept, 2, g)
        write(kept, 3, o)
        write(kept, 4, cell)
        write(y, 0, o * tanh(cell))

    var i = 0
    while i + W <= hidden:
        element[False](i)
        i += W
    if i < hidden:
        element[True](i)


@no_inline
def lstm[
    dtype: DType
](
    y: Ptr[dtype],
    kept: Ptr[dtype],
    before: Ptr[dtype],
    last: Ptr[dtype],
    gx: Ptr[dtype],
    state: Ptr[dtype],
    has_state: Bool,
    w: Ptr[dtype],
    bias: Ptr[dtype],
    has_bias: Bool,
    s: Sequence,
):
    """All steps: y [B, T, H], kept [B, T, 5 H], h before each step [B, T, H], the last state [B, 2 H]."""
    var size = s.hidden
    var parts = s.parts(4)

    def part(p: Int) {imm}:
        var first = p * s.batch // parts
        var rows = (p + 1) * s.batch // parts - first
        if rows == 0:
            return
        var gh = allocate[dtype](rows * 4 * size + size)
        var zeros = gh.unsafe_offset(rows * 4 * size)
        fill_zero(zeros, size)
        var step = 2 * size if has_state else 0
        var h = Before(state if has_state else zeros, step, y, s.steps * size, size)
        var c = Before(
            state.unsafe_offset(size) if has_state else zeros,
            step,
            kept.unsafe_offset(4 * size),
            s.steps * LSTM_KEPT * size,
            LSTM_KEPT * size,
        )
        for t in range(s.steps):
            _products(gh, h.at(first, t), h.stride(t), w, bias, has_bias, rows, size, 4)
            for b in range(rows):
                var i = (first + b) * s.steps + t
                copy_elements(before.unsafe_offset(i * size), h.at(first + b, t), size)
                _lstm_step(
                    y.unsafe_offset(i * size),
                    kept.unsafe_offset(i * LSTM_KEPT * size),
                    gx.unsafe_offset(i * 4 * size),
                    gh.unsafe_offset(b * 4 * size),
                    c.at(first + b, t),
                    size,
                )
        for b in range(first, first + rows):
            copy_elements(last.unsafe_offset(2 * b * size), h.at(b, s.steps), size)
            copy_elements(last.unsafe_offset((2 * b + 1) * size), c.at(b, s.steps), size)
        release(gh)

    parallel_for(part, parts)


@no_inline
def _lstm_step_grad[
    dtype: DType
](
    dgx: Ptr[dtype],
    carry: Ptr[dtype],
    dc: Ptr[dtype],
    dy: Ptr[dtype],
    has_dy: Bool,
    kept: Ptr[dtype],
    c: Ptr[dtype],
    hidden: Int,
):
    """One sample's step: gradients of the gates, and of the state before it but for W's share."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    var mask = lanes_below[C, W](hidden % W)

    @__parameter
    @always_inline
    def element[masked: Bool](i: Int):
        @__parameter
        @always_inline
        def read(p: Ptr[dtype], gate: Int) -> SIMD[C, W]:
            return load_lanes[dtype, W, masked](p.unsafe_offset(gate * hidden + i), mask)

        @__parameter
        @always_inline
        def write(p: Ptr[dtype], gate: Int, value: SIMD[C, W]):
            store_lanes[dtype, W, masked](value, p.unsafe_offset(gate * hidden + i), mask)

        var i_ = read(kept, 0)
        var f = read(kept, 1)
        var g = read(kept, 2)
        var o = read(kept, 3)
        var u = tanh(read(kept, 4))
        var dh = read(carry, 0)
        if has_dy:
            dh += read(dy, 0)
        var dcell = read(dc, 0) + dh * o * (1 - u * u)
        write(dgx, 0, dcell * g * i_ * (1 - i_))
        write(dgx, 1, dcell * read(c, 0) * f * (1 - f))
        write(dgx, 2, dcell * i_ * (1 - g * g))
        write(dgx, 3, dh * u * o * (1 - o))
        write(dc, 0, dcell * f)
        write(carry, 0, SIMD[C, W](0))

    var i = 0
    while i + W <= hidden:
        element[False](i)
        i += W
    if i < hidden:
        element[True](i)


@no_inline
def lstm_grad[
    dtype: DType
](
    dgx: Ptr[dtype],
    dstate: Ptr[dtype],
    dy: Ptr[dtype],
    has_dy: Bool,
    dlast: Ptr[dtype],
    has_dlast: Bool,
    kept: Ptr[dtype],
    state: Ptr[dtype],
    has_state: Bool,
    w: Ptr[dtype],
    s: Sequence,
):
    """Back through all steps: the gradient of gx and of gh [B, T, 4 H], that of the initial state [B, 2 H]."""
    var size = s.hidden
    var wt = _transposed(w, size, 4)
    var parts = s.parts(4)

    def part(p: Int) {imm}:
        var first = p * s.batch // parts
        var rows = (p + 1) * s.batch // parts - first
        if rows == 0:
            return
        var carry = allocate[dtype](rows * 2 * size + size)
        var dc = carry.unsafe_offset(rows * size)
        var zeros = dc.unsafe_offset(rows * size)
        fill_zero(carry, rows * 2 * size + size)
        if has_dlast:
            var start = dlast.unsafe_offset(2 * first * size)
            _copy_rows(carry, size, start, 2 * size, rows, size)
            _copy_rows(dc, size, start.unsafe_offset(size), 2 * size, rows, size)
        var c = Before(
            state.unsafe_offset(size) if has_state else zeros,
            2 * size if has_state else 0,
            kept.unsafe_offset(4 * size),
            s.steps * LSTM_KEPT * size,
            LSTM_KEPT * size,
        )
        for back in range(s.steps):
            var t = s.steps - 1 - back
            for b in range(rows):
                var i = (first + b) * s.steps + t
                _lstm_step_grad(
                    dgx.unsafe_offset(i * 4 * size),
                    carry.unsafe_offset(b * size),
                    dc.unsafe_offset(b * size),
                    dy.unsafe_offset(i * size if has_dy else 0),
                    has_dy,
                    kept.unsafe_offset(i * LSTM_KEPT * size),
                    c.at(first + b, t),
                    size,
                )
            _back(carry, dgx.unsafe_offset((first * s.steps + t) * 4 * size), s.steps * 4 * size, wt, rows, size, 4)
        var end = dstate.unsafe_offset(2 * first * size)
        _copy_rows(end, 2 * size, carry, size, rows, size)
        _copy_rows(end.unsafe_offset(size), 2 * size, dc, size, rows, size)
        release(carry)

    parallel_for(part, parts)
    release(wt)
