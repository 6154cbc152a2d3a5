"""Python and Mojo agree on the layout of control memory."""

import re

from noeira.ops import control
from noeira.runtime.kernel_library import kernel_sources


def test_both_sides_use_the_same_positions():
    text = (kernel_sources() / "control.mojo").read_text(encoding="utf-8")
    mojo = {name: int(value) for name, value in re.findall(r"^comptime (\w+) = (\d+)$", text, re.MULTILINE)}
    assert len(mojo) > 20
    assert mojo == {name: getattr(control, name) for name in mojo}
