"""Which of noeira's kernels are claimed to have GPU code, and how each is recorded for a compile.

A kernel that gets GPU code gets a line in `NVIDIA` (a recording whose program uses it), a kernel that MAX cannot
compile for Apple by itself gets one in `APPLE` (a Mojo program that launches it). `check` fails where a claim is
false, and where `KERNEL_TARGETS` promises a device to users that a kernel has no claim for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from noeira.runtime.kernel_library import kernel_sources
from noeira.runtime.staging import StagedGraph

NVIDIA: Mapping[str, Callable[[], StagedGraph]] = {}
"""Op name -> a recording that uses it."""

APPLE: Mapping[str, Path] = {}
"""Op name -> a Mojo program that launches its kernel."""


def registered(folder: Path | None = None) -> list[str]:
    """Names of all ops the kernel sources register."""
    sources = sorted((folder or kernel_sources()).rglob("*.mojo"))
    pattern = re.compile(r'@extensibility\.register\("([^"]+)"\)')
    return sorted({name for path in sources for name in pattern.findall(path.read_text(encoding="utf-8"))})
