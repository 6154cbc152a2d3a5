"""Attention as MAX custom ops: thin wrappers that read sizes and strides off the tensors.

    q, k, v: [batch, head, token, feature], or [batch, token, head x feature]
    qkv:     [batch, token, 3 x head x feature], or [batch, 3, token, head x feature]
    keep, bias: [batch, head, query, key], dimensions of size 1 are broadcast; unread unless the options say so

    options (int64): heads, heads of keys, causal, has keep, mode of the bias, dropout, its threshold
    numbers: scale, dropout's factor
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu

from .attention import Attention, Bytes, Draw, Heads, Strides
from .attention_backward import AttentionGrad, attention_backward
from .attention_forward import attention_forward
from .control import SEED, STEP, STREAM
from .memory import Ptr, at
from .random import low_word

comptime Words = Ptr[DType.int64]


@always_inline
def _cpu_only[target: StaticString]():
    comptime assert not is_gpu[target](), "noeira's attention is not implemented for GPU yet"


@always_inline
def _heads[dtype: DType, rank: Int](start: Ptr[dtype], n1: Int, n2: Int, n3: Int, heads: Int) -> Heads[dtype]:
    """A tensor of rank 4 [batch, n1 heads, n2 tokens, n3] or 3 [batch, n1 tokens, n2], which has `heads` heads."""
    comptime if rank == 4:
        return Heads(start, n1 * n2 * n3, n2 * n3, n3)
    else:
        return Heads(start, n1 * n2, n2 // heads, n2)


@always_inline
def _strides(n0: Int, n1: Int, n2: Int, n3: Int) -> Strides:
    """Of a contiguous mask, 0 where a dimension is 1."""
    return Strides(0 if n0 == 1 else n1 * n2 * n3, 0 if n1 == 1 else n2 * n3, 0 if n2 == 1 else n3, 0 if n3 == 1 else 1)


@always_inline
def _draw[dtype: DType](key: Words, options: Words, numbers: Ptr[dtype]) -> Draw[dtype]:
    return Draw(
        at(options, 5) != 0,
        UInt64(at(key, SEED)),
        low_word(at(key, STEP)),
        low_word(at(key, STREAM)),
        UInt64(at(options, 6)),
        at(numbers, 1),
    )


@extensibility.register("noeira.attention")
struct AttentionForward:
    """`out = softmax(scale q k^T + bias) v`, and the statistics of its rows."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        out_: OutputTensor,
        stats: OutputTensor[dtype=out_.dtype, rank=4, ...],
        q: InputTensor[dtype=out_.dtype, rank=out_.rank, ...],
        k: InputTensor[dtype=out_.dtype, rank=out_.rank, ...],
        v: InputTensor[dtype=out_.dtype, rank=out_.rank, ...],
        keep: InputTensor[dtype=DType.bool, rank=4, ...],
        bias: InputTensor[dtype=out_.dtype, rank=4, ...],
        key: InputTensor[dtype=DType.int64, rank=1, ...],
        options: InputTensor[dtype=DType.int64, rank=1, ...],
        numbers: InputTensor[dtype=out_.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        _cpu_only[target]()
        comptime P = Ptr[out_.dtype]
        comptime R = out_.rank
        comptime last = R - 1
        var o = rebind[Words](options.unsafe_ptr())
        var f = rebind[P](numbers.unsafe_ptr())
        var h = Int(at(o, 0))
        var kv = Int(at(o, 1))
        var split = 1 if R == 4 else h
        var kv_split = 1 if R == 4 else kv
        attention_forward(
            Attention(
                _heads[out_.dtype, R](rebind[P](q.unsafe_ptr()), q.dim_size(1), q.dim_size(2), q.dim_size(last), h),
                _heads[out_.dtype, R](rebind[P](k.unsafe_ptr()), k.dim_size(1), k.dim_size(2), k.dim_size(last), kv),
                _heads[out_.dtype, R](rebind[P](v.unsafe_ptr()), v.dim_size(1), v.dim_size(2), v.dim_size(last), kv),
                _heads[out_.dtype, R](
                    rebind[P](out_.unsafe_ptr()), out_.dim_size(1), out_.dim_size(2), out_.dim_size(last), h
                ),
                rebind[P](stats.unsafe_ptr()),
                q.dim_size(0),
                h,
                kv,
                q.dim_size(R - 2),
                k.dim_size(R - 2),
                q.dim_size(last) // split,
                v.dim_size(last) // kv_split,
                at(f, 0),
                at(o, 2) != 0,
                at(o, 3) != 0,
                rebind[Bytes](keep.unsafe_ptr().unsafe_bitcast[UInt8]()),
                _strides(keep.dim_size(0), keep.dim_size(1), keep.dim_size(2), keep.dim_size(3)),
                Int(at(o, 4)),
                rebind[P](bias.unsafe_ptr()),
                _strides(bias.dim_size(0), bias.dim_size(1), bias.dim_size(2), bias.dim_size(3)),
                _draw(rebind[Words](key.unsafe_ptr()), o, f),
            )
        )


@extensibility.register("noeira.attention_grad")
struct AttentionBackward:
    """Gradients of q, k and v from the output's."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dq: OutputTensor,
        dk: OutputTensor[dtype=dq.dtype, rank=dq.rank, ...],
        dv: OutputTensor[dtype=dq.dtype, rank=dq.rank, ...],
        q: InputTensor[dtype=dq.dtype, rank=dq.rank, ...],
        k: InputTensor[dtype=dq.dtype, rank=dq.rank, ...],
        v: InputTensor[dtype=dq.dtype, rank=dq.rank, ...],
        out_: InputTensor[dtype=dq.dtype, rank=dq.rank, ...],
        stats: InputTensor[dtype=dq.dtype, rank=4, ...],
        grad: InputTensor[dtype=dq.dtype, rank=dq.rank, ...],
        keep: InputTensor[dtype=DType.bool, rank=4, ...],
        bias: InputTensor[dtype=dq.dtype, rank=4, ...],
        key: InputTensor[dtype=DType.int64, rank=1, ...],
        options: InputTensor[dtype=DType.int64, rank=1, ...],
        numbers: InputTensor[dtype=dq.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        _cpu_only[target]()
        comptime P = Ptr[dq.dtype]
        comptime R = dq.rank
        comptime last = R - 1
        var o = rebind[Words](options.unsafe_ptr())
        var f = rebind[P](numbers.unsafe_ptr())
        var h = Int(at(o, 0))
        var kv = Int(at(o, 1))
        var split = 1 if R == 4 else h
        var kv_split = 1 if R == 4 else kv
        var qh = _heads[dq.dtype, R](rebind[P](q.unsafe_ptr()), q.dim_size(1), q.dim_size(2), q.dim_size(last), h)
        var kh = _heads[dq.dtype, R](rebind[P](k.unsafe_ptr()), k.dim_size(1), k.dim_size(2), k.dim_size(last), kv)
        var vh = _heads[dq.dtype, R](rebind[P](v.unsafe_ptr()), v.dim_size(1), v.dim_size(2), v.dim_size(last), kv)
        var oh = _heads[dq.dtype, R](
            rebind[P](out_.unsafe_ptr()), out_.dim_size(1), out_.dim_size(2), out_.dim_size(last), h
        )
        attention_backward(
            Attention(
                qh,
                kh,
                vh,
                oh,
                rebind[P](stats.unsafe_ptr()),
                q.dim_size(0),
                h,
                kv,
                q.dim_size(R - 2),
                k.dim_size(R - 2),
                q.dim_size(last) // split,
                v.dim_size(last) // kv_split,
                at(f, 0),
                at(o, 2) != 0,
                at(o, 3) != 0,
                rebind[Bytes](keep.unsafe_ptr().unsafe_bitcast[UInt8]()),
                _strides(keep.dim_size(0), keep.dim_size(1), keep.dim_size(2), keep.dim_size(3)),
                Int(at(o, 4)),
                rebind[P](bias.unsafe_ptr()),
                _strides(bias.dim_size(0), bias.dim_size(1), bias.dim_size(2), bias.dim_size(3)),
                _draw(rebind[Words](key.unsafe_ptr()), o, f),
            ),
            AttentionGrad(
                Heads(rebind[P](grad.unsafe_ptr()), oh.batch, oh.head, oh.token),
                Heads(rebind[P](dq.unsafe_ptr()), qh.batch, qh.head, qh.token),
                Heads(rebind[P](dk.unsafe_ptr()), kh.batch, kh.head, kh.token),
                Heads(rebind[P](dv.unsafe_ptr()), vh.batch, vh.head, vh.token),
            ),
        )


@always_inline
def _packed[dtype: DType, rank: Int](start: Ptr[dtype], part: Int, tokens: Int, width: Int, heads: Int) -> Heads[dtype]:
    """Queries (part 0), keys (1) or values (2) of a packed tensor, `width` features over all heads."""
    comptime if rank == 4:
        return Heads(start.unsafe_offset(part * tokens * width), 3 * tokens * width, width // heads, width)
    else:
        return Heads(start.unsafe_offset(part * width), 3 * tokens * width, width // heads, 3 * width)


@always_inline
def _packed_attention[
    dtype: DType, rank: Int
](
    qkv: Ptr[dtype],
    out_: Ptr[dtype],
    stats: Ptr[dtype],
    batch: Int,
    tokens: Int,
    width: Int,
    keep: Bytes,
    keep_strides: Strides,
    bias: Ptr[dtype],
    bias_strides: Strides,
    key: Words,
    options: Words,
    numbers: Ptr[dtype],
) -> Attention[dtype]:
    var h = Int(at(options, 0))
    return Attention(
        _packed[dtype, rank](qkv, 0, tokens, width, h),
        _packed[dtype, rank](qkv, 1, tokens, width, h),
        _packed[dtype, rank](qkv, 2, tokens, width, h),
        Heads(out_, tokens * width, width // h, width),
        stats,
        batch,
        h,
        h,
        tokens,
        tokens,
        width // h,
        width // h,
        at(numbers, 0),
        at(options, 2) != 0,
        at(options, 3) != 0,
        keep,
        keep_strides,
        Int(at(options, 4)),
        bias,
        bias_strides,
        _draw(key, options, numbers),
    )


@extensibility.register("noeira.attention_packed")
struct PackedForward:
    """Self-attention on one tensor of queries, keys and values; the output is [batch, token, head x feature]."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        out_: OutputTensor[rank=3, ...],
        stats: OutputTensor[dtype=out_.dtype, rank=4, ...],
        qkv: InputTensor[dtype=out_.dtype, ...],
        keep: InputTensor[dtype=DType.bool, rank=4, ...],
        bias: InputTensor[dtype=out_.dtype, rank=4, ...],
        key: InputTensor[dtype=DType.int64, rank=1, ...],
        options: InputTensor[dtype=DType.int64, rank=1, ...],
        numbers: InputTensor[dtype=out_.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        _cpu_only[target]()
        comptime P = Ptr[out_.dtype]
        attention_forward(
            _packed_attention[out_.dtype, qkv.rank](
                rebind[P](qkv.unsafe_ptr()),
                rebind[P](out_.unsafe_ptr()),
                rebind[P](stats.unsafe_ptr()),
                out_.dim_size(0),
                out_.dim_size(1),
                out_.dim_size(2),
                rebind[Bytes](keep.unsafe_ptr().unsafe_bitcast[UInt8]()),
                _strides(keep.dim_size(0), keep.dim_size(1), keep.dim_size(2), keep.dim_size(3)),
                rebind[P](bias.unsafe_ptr()),
                _strides(bias.dim_size(0), bias.dim_size(1), bias.dim_size(2), bias.dim_size(3)),
                rebind[Words](key.unsafe_ptr()),
                rebind[Words](options.unsafe_ptr()),
                rebind[P](numbers.unsafe_ptr()),
            )
        )


@extensibility.register("noeira.attention_packed_grad")
struct PackedBackward:
    """The gradient of the packed tensor."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dqkv: OutputTensor,
        qkv: InputTensor[dtype=dqkv.dtype, rank=dqkv.rank, ...],
        out_: InputTensor[dtype=dqkv.dtype, rank=3, ...],
        stats: InputTensor[dtype=dqkv.dtype, rank=4, ...],
        grad: InputTensor[dtype=dqkv.dtype, rank=3, ...],
        keep: InputTensor[dtype=DType.bool, rank=4, ...],
        bias: InputTensor[dtype=dqkv.dtype, rank=4, ...],
        key: InputTensor[dtype=DType.int64, rank=1, ...],
        options: InputTensor[dtype=DType.int64, rank=1, ...],
        numbers: InputTensor[dtype=dqkv.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        _cpu_only[target]()
        comptime P = Ptr[dqkv.dtype]
        comptime R = dqkv.rank
        var tokens = out_.dim_size(1)
        var width = out_.dim_size(2)
        var a = _packed_attention[dqkv.dtype, R](
            rebind[P](qkv.unsafe_ptr()),
            rebind[P](out_.unsafe_ptr()),
            rebind[P](stats.unsafe_ptr()),
            out_.dim_size(0),
            tokens,
            width,
            rebind[Bytes](keep.unsafe_ptr().unsafe_bitcast[UInt8]()),
            _strides(keep.dim_size(0), keep.dim_size(1), keep.dim_size(2), keep.dim_size(3)),
            rebind[P](bias.unsafe_ptr()),
            _strides(bias.dim_size(0), bias.dim_size(1), bias.dim_size(2), bias.dim_size(3)),
            rebind[Words](key.unsafe_ptr()),
            rebind[Words](options.unsafe_ptr()),
            rebind[P](numbers.unsafe_ptr()),
        )
        var target_ = rebind[P](dqkv.unsafe_ptr())
        attention_backward(
            a,
            AttentionGrad(
                Heads(rebind[P](grad.unsafe_ptr()), a.out_.batch, a.out_.head, a.out_.token),
                _packed[dqkv.dtype, R](target_, 0, tokens, width, a.heads),
                _packed[dqkv.dtype, R](target_, 1, tokens, width, a.heads),
                _packed[dqkv.dtype, R](target_, 2, tokens, width, a.heads),
            ),
        )
