"""Splitting work over the runtime's threads.

`parallel_for` hands all parts but the first to the runtime's queue, runs the first itself and then helps with what is
left. Where the workers are awake this costs half a microsecond, and where they are not the caller does not wait for
them: `max.algorithm.parallelize`, which sleeps until the workers are done, costs ten.
"""

from std.math import ceildiv
from std.runtime import parallelism_level
from std.runtime._asyncrt import TaskGroup

comptime FLOPS_PER_PART = 400_000
"""The least work, in floating-point operations of a matrix product, worth a part of its own: about 4 microseconds."""


def worthwhile_parts(flops: Int) -> Int:
    """Into how many parts, at most one for each thread, this much work should be divided."""
    return max(1, min(parallelism_level(), flops // FLOPS_PER_PART))


def worthwhile_step(count: Int, flops: Int, unit: Int) -> Int:
    """How many of `count` elements, a multiple of `unit`, each part of an elementwise pass should get: at least one."""
    return max(1, ceildiv(ceildiv(count, unit), worthwhile_parts(flops))) * unit


__async def _run_part[Body: def(Int) -> None](body: Pointer[Body, MutUntrackedOrigin], i: Int):
    body[](i)


def parallel_for[Body: def(Int) -> None](body: Body, count: Int):
    """Run body(0) ... body(count - 1), in any order and possibly at the same time, and wait for all of them.

    The body must not raise, and writes of different parts must not overlap.
    """
    if count <= 1:
        if count == 1:
            body(0)
        return
    var tasks = TaskGroup()
    var shared = rebind[Pointer[Body, MutUntrackedOrigin]](Pointer(to=body))
    for i in range(1, count):
        tasks.create_task(_run_part(shared, i))
    body(0)
    tasks.wait()
