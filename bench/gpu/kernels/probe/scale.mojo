"""`y = 2 x` on CPU and GPU."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu import global_idx
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.math import ceildiv

comptime F = DType.float32
comptime Ptr = Pointer[Scalar[F], MutAnyOrigin]
comptime BLOCK = 256


def scale_kernel(y: Ptr, x: Ptr, count: Int32):
    """One thread an element."""
    var i = Int(global_idx.x)
    if i < Int(count):
        y.unsafe_offset(i).unsafe_store(x.unsafe_offset(i).unsafe_load() * 2)


@extensibility.register("bench.scale")
struct Scale:
    """`y = 2 x`."""

    @staticmethod
    def execute[
        target: StaticString
    ](y: OutputTensor[dtype=F, rank=1, ...], x: InputTensor[dtype=F, rank=1, ...], ctx: DeviceContext) raises:
        var count = x.dim_size(0)
        var source = rebind[Ptr](x.unsafe_ptr())
        var result = rebind[Ptr](y.unsafe_ptr())
        comptime if is_gpu[target]():
            ctx.enqueue_function[scale_kernel](
                result, source, Int32(count), grid_dim=ceildiv(count, BLOCK), block_dim=BLOCK
            )
        else:
            for i in range(count):
                result.unsafe_offset(i).unsafe_store(source.unsafe_offset(i).unsafe_load() * 2)
