"""The geometry of convolutions, one axis at a time.

Forward and input gradient are one gathering sum: output position i, of some arithmetic progression of positions, takes
from source positions `i * step + first + t * spread` the taps t = 0, 1, ...

    forward            step = stride, first = -padding, spread = dilation: one problem
    input gradient     h = phase + stride i takes dy[(h + padding - k dilation) / stride] for those k where the
                       division is exact; they are a progression, too: one problem for each of the `stride` phases,
                       with step 1 and no multiplication by a zero that a stride would have put between gradients
"""

from std.math import ceildiv


@fieldwise_init
struct Window(ImplicitlyCopyable):
    """A convolution's parameters along one axis."""

    var kernel: Int
    var stride: Int
    var padding: Int
    var dilation: Int


@fieldwise_init
struct Axis(ImplicitlyCopyable):
    """One axis of a gathering sum."""

    var outs: Int
    """Number of output positions."""
    var taps: Int
    var step: Int
    """Source positions from one output to the next."""
    var first: Int
    """Source position of tap 0 for output 0; may lie outside the source."""
    var spread: Int
    """Source positions from one tap to the next; may be negative."""
    var size: Int
    """Source positions."""
    var kernel_first: Int
    """Kernel index of tap 0."""
    var kernel_step: Int
    """Kernel indices from one tap to the next."""
    var out_first: Int
    """Where output 0 lies in memory."""
    var out_step: Int
    """From one output to the next in memory."""

    @staticmethod
    def forward(w: Window, size: Int, outs: Int) -> Axis:
        """The axis of a forward convolution of `size` positions to `outs`."""
        return Axis(outs, w.kernel, w.stride, -w.padding, w.dilation, size, 0, 1, 0, 1)

    @staticmethod
    def phase(w: Window, phase: Int, size: Int, outs: Int) -> Axis:
        """The input gradient at positions phase, phase + stride, ... of `outs`, from `size` positions of dy."""
        var first = -1
        var second = -1
        var count = 0
        for k in range(w.kernel):
            if (phase + w.padding - k * w.dilation) % w.stride == 0:
                if count == 0:
                    first = k
                if count == 1:
                    second = k
                count += 1
        var kernel_step = second - first if count > 1 else 1
        var start = (phase + w.padding - first * w.dilation) // w.stride if count > 0 else 0
        var spread = -(kernel_step * w.dilation) // w.stride if count > 1 else 0
        return Axis(
            max(0, ceildiv(outs - phase, w.stride)),
            count,
            1,
            start,
            spread,
            size,
            first,
            kernel_step,
            phase,
            w.stride,
        )

    def low(self) -> Int:
        """The least source position that output 0 takes from."""
        return self.first + min(0, (self.taps - 1) * self.spread)

    def reach(self) -> Int:
        """How many source positions lie between the first and the last that one output takes from, both included."""
        return abs((self.taps - 1) * self.spread) + 1

    def span(self, outs: Int) -> Int:
        """How many source positions `outs` neighbouring outputs take from."""
        return (outs - 1) * self.step + self.reach()

    def inside(self) -> Bool:
        """Whether no output takes from outside the source."""
        return self.low() >= 0 and self.low() + self.span(self.outs) <= self.size
