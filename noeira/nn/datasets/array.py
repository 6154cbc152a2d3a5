"""`ArrayDataset`: inputs and targets held as NumPy arrays, with the scale a consumer applies."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, repr=False)
class ArrayDataset:
    """Inputs and targets of a supervised task, as arrays that share their first axis.

    Pixels may stay uint8: a consumer gathers the bytes of a batch first and multiplies by
    `input_scale` after, so a quarter of the memory is held and moved.

    Args:
        inputs: float32 or uint8, [N, ...], memory maps kept as they are; or ids (tokens), of a wider integer dtype,
            stored as int32.
        targets: class ids, [N] or one a token [N, T], any integer dtype, stored as int32; or numbers of any shape
            [N, ...] (probability rows [N, C], values to regress), any floating dtype, stored as float32.
        input_scale: What a consumer multiplies `inputs` by, e.g. `1 / 255` for pixels.
        class_names: The name of each class id; empty when the classes have none.
        name: What messages call this data set.

    Raises:
        TypeError: `inputs` or `targets` are no NumPy arrays, or have another dtype.
        ValueError: The shapes disagree, a class id is out of range, or `input_scale` is not a
            finite positive number.

    Example:
        >>> ds = ArrayDataset(np.zeros((4, 1, 2, 2), np.uint8), np.arange(4), input_scale=1 / 255)
        >>> len(ds[:3]), ds[[3, 0]].targets.tolist()
        (3, [3, 0])
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    _: KW_ONLY
    input_scale: float = 1.0
    class_names: tuple[str, ...] = ()
    name: str = "dataset"

    def __post_init__(self) -> None:
        """Check every field, and bring the targets to int32 or float32."""
        where = f"ArrayDataset {self.name!r}"
        for field, value in (("inputs", self.inputs), ("targets", self.targets)):
            if not isinstance(value, np.ndarray):
                raise TypeError(
                    f"{where}: expected {field} to be a numpy.ndarray, received {type(value).__name__}; "
                    f"wrap it in np.asarray(...)."
                )
        if self.inputs.dtype.kind in "iu" and self.inputs.dtype != np.uint8:
            object.__setattr__(self, "inputs", _checked_ids(self.inputs, self.input_scale, where))
        elif self.inputs.dtype not in (np.float32, np.uint8):
            raise TypeError(
                f"{where}: expected inputs of dtype float32, uint8 or a wider integer (ids), received "
                f"{self.inputs.dtype}; convert with inputs.astype(np.float32)."
            )
        if self.inputs.ndim < 2:
            raise ValueError(
                f"{where}: expected inputs [N, ...] of at least 2 dimensions, received shape "
                f"{self.inputs.shape}; a single feature is inputs[:, None]."
            )
        object.__setattr__(self, "class_names", tuple(self.class_names))
        object.__setattr__(self, "targets", _checked_targets(self.targets, len(self.class_names), where))
        if len(self.inputs) != len(self.targets):
            raise ValueError(
                f"{where}: expected as many targets as inputs ({len(self.inputs)}), "
                f"received {len(self.targets)} targets."
            )
        if not (math.isfinite(self.input_scale) and self.input_scale > 0):
            raise ValueError(
                f"{where}: expected a finite input_scale > 0, received {self.input_scale}; use 1.0 for none."
            )

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return len(self.inputs)

    def __getitem__(self, key: slice | list[int] | NDArray[Any]) -> ArrayDataset:
        """Return the chosen samples as another data set; a slice shares memory with this one.

        Args:
            key: A slice, a list or 1-D array of integer positions, or a boolean mask of length N.

        Raises:
            TypeError: `key` is anything else, e.g. a single integer.
            IndexError: A position is out of range.

        Example:
            >>> ds = ArrayDataset(np.zeros((4, 2), np.float32), np.arange(4))
            >>> ds[1:3].targets.tolist()
            [1, 2]
        """
        if isinstance(key, list):
            # An empty list would come out as float64, which NumPy refuses as an index.
            key = np.asarray(key) if key else np.empty(0, np.intp)
        is_positions = isinstance(key, np.ndarray) and key.ndim == 1 and key.dtype.kind in "iub"
        if not (isinstance(key, slice) or is_positions):
            received = f"{key.dtype}{list(key.shape)}" if isinstance(key, np.ndarray) else repr(key)
            raise TypeError(
                f"ArrayDataset {self.name!r}: expected a slice, a 1-D integer array or a boolean mask as "
                f"index, received {received}; one sample is ds[i : i + 1]."
            )
        return replace(self, inputs=self.inputs[key], targets=self.targets[key])

    def __repr__(self) -> str:
        """Show the sizes and dtypes, never the values."""
        scale = "" if self.input_scale == 1.0 else f" * {self.input_scale:g}"
        classes = f", {len(self.class_names)} classes" if self.class_names else ""
        return (
            f"ArrayDataset({self.name!r}, inputs={self.inputs.dtype}{list(self.inputs.shape)}{scale}, "
            f"targets={self.targets.dtype}{list(self.targets.shape)}{classes})"
        )

    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the inputs as float32 with the scale applied (ids as they are), and the targets.

        Returns:
            `(inputs * input_scale, targets)`. Float32 inputs of scale 1 and ids are returned without a copy.

        Example:
            >>> ds = ArrayDataset(np.full((1, 2), 255, np.uint8), np.zeros(1, np.int32), input_scale=1 / 255)
            >>> ds.arrays()[0].tolist()
            [[1.0, 1.0]]
        """
        if self.inputs.dtype != np.uint8 and self.input_scale == 1.0:
            return self.inputs, self.targets
        return np.multiply(self.inputs, np.float32(self.input_scale), dtype=np.float32), self.targets


def _checked_ids(inputs: NDArray[Any], scale: float, where: str) -> NDArray[np.int32]:
    """Return ids as int32."""
    limit = np.iinfo(np.int32).max
    if inputs.size and (inputs.min() < 0 or inputs.max() > limit):
        raise ValueError(f"{where}: expected ids from 0 to {limit}, received {inputs.min()} to {inputs.max()}.")
    if scale != 1.0:
        raise ValueError(f"{where}: expected input_scale 1 for ids ({inputs.dtype}), received {scale:g}.")
    return inputs.astype(np.int32, copy=False)


def _checked_targets(targets: NDArray[Any], num_names: int, where: str) -> NDArray[Any]:
    """Return `targets` as int32 ids [N, ...] or float32 numbers [N, ...]; `num_names` is 0 when unknown."""
    if targets.dtype.kind in "iu":
        if targets.ndim < 1:
            raise ValueError(f"{where}: expected integer targets [N] or [N, T], received a single number.")
        # Negative ids may mark rows a loss ignores; the loss checks the rest against the model's classes.
        limit, low = num_names or np.iinfo(np.int32).max, np.iinfo(np.int32).min
        if targets.size and (targets.min() < low or targets.max() >= limit):
            raise ValueError(
                f"{where}: expected class ids below {limit}, received ids from {targets.min()} to {targets.max()}."
            )
        return targets.astype(np.int32, copy=False)
    if targets.dtype.kind == "f":
        if targets.ndim < 1 or (num_names and (targets.ndim != 2 or targets.shape[1] != num_names)):
            wanted = f"[N, {num_names}] (probability rows)" if num_names else "[N, ...]"
            raise ValueError(
                f"{where}: expected floating targets {wanted}, received shape {targets.shape}; "
                "class ids are integers: targets.astype(np.int32)."
            )
        return targets.astype(np.float32, copy=False)
    raise TypeError(
        f"{where}: expected integer class ids or floating-point numbers as targets, received dtype {targets.dtype}."
    )
