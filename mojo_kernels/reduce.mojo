"""Sums over rows: y[c] = sum_r x[r, c], in row order, so the result does not depend on threads."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext

from .gemm_reduce import add_column_sums
from .memory import Ptr
from .target import cpu_only


@extensibility.register("noeira.sum_rows")
struct SumRows:
    """All axes but the last are rows."""

    @staticmethod
    def execute[
        target: StaticString
    ](y: OutputTensor[rank=1, ...], x: InputTensor[dtype=y.dtype, ...], ctx: DeviceContext) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        var cols = y.dim_size(0)
        var rows = 1
        comptime for d in range(x.rank - 1):
            rows *= x.dim_size(d)
        var sums = rebind[P](y.unsafe_ptr())
        for c in range(cols):
            sums.unsafe_offset(c).unsafe_store(Scalar[y.dtype](0))
        add_column_sums(sums, rebind[P](x.unsafe_ptr()), cols, rows, cols)
