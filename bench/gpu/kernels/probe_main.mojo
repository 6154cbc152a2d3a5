"""A program that launches the probe's kernel, for targets MAX cannot stand in for with a virtual device."""

from max.gpu.host import DeviceContext
from probe.scale import BLOCK, scale_kernel


def main() raises:
    """Launch it once."""
    var ctx = DeviceContext()
    var x = ctx.enqueue_create_buffer[DType.float32](4 * BLOCK)
    var y = ctx.enqueue_create_buffer[DType.float32](4 * BLOCK)
    ctx.enqueue_function[scale_kernel](y, x, Int32(4 * BLOCK), grid_dim=4, block_dim=BLOCK)
    ctx.synchronize()
