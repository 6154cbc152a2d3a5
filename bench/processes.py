"""Jobs that time a fresh process: from its start until it reports its first training step done."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from bench.case import Inputs, Job, Results

ROOT = Path(__file__).parents[1]


def perceptron(depth: int, *, width: int = 256, features: int = 784, classes: int = 10, rows: int = 100) -> Inputs:
    """A batch, and the weights of `depth` hidden layers and a head."""
    draw = np.random.default_rng(0)
    widths = [features, *[width] * depth]
    weights = {
        f"w{i}": draw.standard_normal((a, b), np.float32) * np.float32((2 / a) ** 0.5)
        for i, (a, b) in enumerate(itertools.pairwise(widths))
    }
    head = draw.standard_normal((width, classes), np.float32) * np.float32(width**-0.5)
    x = draw.standard_normal((rows, features), np.float32)
    return {"x": x, "y": draw.integers(0, classes, rows).astype(np.int32), "head": head, **weights}


class FreshProcess:
    """A child process to run again and again.

    Args:
        system: What `bench.first_step` runs.
        inputs: Its weights and batch.
        depth: Hidden layers, or blocks.
        prepare: Called before each start, outside the measured time; returns environment variables for the child.
    """

    def __init__(self, system: str, inputs: Inputs, depth: int, prepare: Callable[[], Mapping[str, str]] = dict):
        self.system, self.depth, self.prepare = system, depth, prepare
        self._folder = tempfile.TemporaryDirectory(prefix="noeira-bench-")
        self._path = Path(self._folder.name) / "inputs.npz"
        np.savez(self._path, **inputs)  # type: ignore[arg-type]
        self._cpu: list[float] = []
        self._reports: list[dict[str, float | str]] = []

    def start(self) -> float:
        """Start the process and wait for its report.

        Returns:
            Seconds from before the start until the report.

        Raises:
            RuntimeError: The process failed.
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        environment |= self.prepare()
        command = [sys.executable, "-m", "bench.first_step", self.system, str(self._path), str(self.depth)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None and child.stderr is not None
            line = child.stdout.readline()
            elapsed = time.perf_counter() - start
            errors = child.communicate()[1]
        if child.returncode or not line:
            raise RuntimeError(
                f"the {self.system} process ended with code {child.returncode}: {errors.strip()[-2000:]}"
            )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        self._reports.append(json.loads(line))
        return elapsed

    def result(self) -> Results:
        """The first step's loss."""
        self.start()
        return {"loss": np.array(self._reports[-1]["loss"])}

    def notes(self) -> dict[str, float | str]:
        """CPU seconds of the whole process and of compiling, and seconds until its imports were done."""
        imports = [float(report["imports"]) for report in self._reports]
        compiled = {str(report["compiled"]) for report in self._reports[1:] or self._reports}
        notes: dict[str, float | str] = {
            "CPU s": statistics.median(self._cpu[1:] or self._cpu),
            "imports s": statistics.median(imports[1:] or imports),
            "compiled": "/".join(sorted(compiled)),
        }
        building = [float(report["compile"]) for report in self._reports[1:] or self._reports if "compile" in report]
        if building:
            notes["CPU s of compiling"] = statistics.median(building)
        return notes

    def job(self) -> Job:
        """The job."""
        return Job(self.start, self.result, measure=self.start, notes=self.notes)


class Caches:
    """Caches of the child's own, in one of the states a user can meet.

    "cold": neither MAX nor noeira has compiled anything. "warm": MAX's cache holds the kernels and graphs, the
    program store is empty. "stored": the program store holds the program. The first start fills what must be full.
    """

    def __init__(self, state: str):
        self.state = state
        self._folder = tempfile.TemporaryDirectory(prefix="noeira-bench-cache-")
        self._started = False

    def __call__(self) -> dict[str, str]:
        """Put the caches into their state; the child's environment."""
        root = Path(self._folder.name)
        if self._started and self.state == "cold":
            shutil.rmtree(root / "max", ignore_errors=True)
            shutil.rmtree(root / "noeira", ignore_errors=True)
        elif self._started and self.state == "warm":
            shutil.rmtree(root / "noeira" / "programs", ignore_errors=True)
        self._started = True
        return {"MODULAR_CACHE_DIR": str(root / "max"), "NOEIRA_CACHE": str(root / "noeira")}
