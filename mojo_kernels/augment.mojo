"""Random changes of images whose draws are made: shifting and mirroring."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext

from .memory import Ptr, at, copy_elements, ptr, store
from .target import cpu_only
from .threads import parallel_for, worthwhile_parts

comptime ELEMENT_FLOPS = 16
"""What an element costs, in operations of a matrix product."""


@no_inline
def _fill_zero[dtype: DType](y: Ptr[dtype], count: Int):
    for i in range(count):
        store[1](y, i, Scalar[dtype](0))


@always_inline
def _shifted_row[dtype: DType](y: Ptr[dtype], x: Ptr[dtype], columns: Int, channels: Int, shift: Int, mirrored: Bool):
    """`y[j] = x[j + shift]`, or `y[j] = x[columns - 1 - j + shift]`, pixels of `channels` numbers; 0 outside of x."""
    # Columns of the output that come from within x: j + shift, or the mirrored one, lies in [0, columns).
    var first = max(0, min(columns, shift if mirrored else -shift))
    var stop = max(first, min(columns, columns + (shift if mirrored else -shift)))
    _fill_zero(y, first * channels)
    if mirrored:
        for j in range(first, stop):
            copy_elements(
                y.unsafe_offset(j * channels), x.unsafe_offset((columns - 1 - j + shift) * channels), channels
            )
    else:
        copy_elements(
            y.unsafe_offset(first * channels), x.unsafe_offset((first + shift) * channels), (stop - first) * channels
        )
    _fill_zero(y.unsafe_offset(stop * channels), (columns - stop) * channels)


@no_inline
def crop_flip[
    dtype: DType
](
    y: Ptr[dtype],
    x: Ptr[dtype],
    moves: Ptr[DType.int64],
    samples: Int,
    planes: Int,
    rows: Int,
    columns: Int,
    channels: Int,
):
    """Every image of `planes` maps, moved as its three numbers say: down, right, and whether to mirror."""
    var parts = min(max(samples, 1), worthwhile_parts(ELEMENT_FLOPS * samples * planes * rows * columns * channels))
    var width = columns * channels

    def part(p: Int) {imm}:
        for i in range(p * samples // parts, (p + 1) * samples // parts):
            var down = Int(at(moves, 3 * i))
            var right = Int(at(moves, 3 * i + 1))
            var mirrored = at(moves, 3 * i + 2) != 0
            for plane in range(planes):
                var start = (i * planes + plane) * rows * width
                for row in range(rows):
                    var target = y.unsafe_offset(start + row * width)
                    var source = row + down
                    if source < 0 or source >= rows:
                        _fill_zero(target, width)
                    else:
                        _shifted_row(
                            target, x.unsafe_offset(start + source * width), columns, channels, right, mirrored
                        )

    parallel_for(part, parts)


@extensibility.register("noeira.crop_flip")
struct CropFlip:
    """Images [N, C, H, W] (`channels_last` 0) or [N, H, W, C], moved by `moves` [N, 3]."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[rank=4, ...],
        x: InputTensor[dtype=y.dtype, rank=4, ...],
        moves: InputTensor[dtype=DType.int64, rank=2, ...],
        channels_last: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        var last = at(ptr(channels_last), 0) != 0
        crop_flip[y.dtype](
            ptr(y),
            rebind[Ptr[y.dtype]](ptr(x)),
            ptr(moves),
            y.dim_size(0),
            1 if last else y.dim_size(1),
            y.dim_size(1) if last else y.dim_size(2),
            y.dim_size(2) if last else y.dim_size(3),
            y.dim_size(3) if last else 1,
        )
