"""Which device a kernel is compiled for."""

from max.gpu.host.info import is_gpu


@always_inline
def cpu_only[target: StaticString]():
    """Refuse, while compiling, to build a kernel for a device that has no branch for it yet."""
    comptime assert not is_gpu[target](), "this op of noeira is not implemented for GPU yet"
