"""Episodes of agents: steps end to end in long arrays, cut into windows that never cross an episode's end.

Read from Zarr replay buffers (Diffusion Policy's layout) and HDF5 files; only the rows of a window are read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from noeira.nn.datasets.idx import DatasetError

_FIX = "Run: pip install 'noeira[episodes]'"


class EpisodeWindows:
    """All windows of `length` steps that lie within one episode.

    Window i is found by a search among the episodes' counts, so memory grows with the episodes and not with the steps.

    Args:
        arrays: By name; [steps, ...], anything that slices like an array: NumPy, memory maps, HDF5, Zarr.
        episode_ends: Where each episode ends, increasing; the last is the number of steps.
        length: Steps a window.
        name: What messages call this data.

    Raises:
        DatasetError: The arrays have other lengths, the ends do not increase to them, or no episode is long enough.
        ValueError: `length` is below 1.

    Example:
        >>> windows = EpisodeWindows({"state": np.arange(7)}, [3, 7], 3)
        >>> len(windows), [windows[i]["state"].tolist() for i in range(len(windows))]
        (3, [[0, 1, 2], [3, 4, 5], [4, 5, 6]])
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        episode_ends: Sequence[int] | NDArray[np.integer],
        length: int,
        *,
        name: str = "episodes",
    ) -> None:
        """See the class."""
        if length < 1:
            raise ValueError(f"EpisodeWindows: expected a length of at least 1, received {length}.")
        ends = np.asarray(episode_ends)
        if ends.ndim != 1 or ends.dtype.kind not in "iu" or not ends.size:
            raise DatasetError(name, "episode ends, integers [episodes]", f"{ends.dtype}{list(ends.shape)}")
        ends = ends.astype(np.int64)
        sizes = np.diff(ends, prepend=0)
        if (sizes <= 0).any():
            at = int(np.argmax(sizes <= 0))
            raise DatasetError(name, "episode ends that increase from above 0", f"{ends[at]} at position {at}")
        for key, array in arrays.items():
            if len(array.shape) < 1 or array.shape[0] != ends[-1]:
                raise DatasetError(
                    f"{name}: {key}", f"{ends[-1]} steps, where the last episode ends", f"shape {list(array.shape)}"
                )
        counts = np.maximum(sizes - length + 1, 0)
        if not counts.any():
            raise DatasetError(name, f"an episode of at least {length} steps", f"at most {sizes.max()}")
        self.arrays, self.length, self.name = dict(arrays), length, name
        self.episode_ends = ends
        self._before = np.cumsum(counts) - counts  # windows before each episode
        self._total, self._starts = int(counts.sum()), ends - sizes

    def __len__(self) -> int:
        """Return the number of windows."""
        return self._total

    def start(self, index: int) -> int:
        """The step at which window `index` begins.

        Raises:
            IndexError: There is no such window.
        """
        if not 0 <= index < self._total:
            raise IndexError(f"{self.name}: expected a window 0 to {self._total - 1}, received {index}")
        episode = int(np.searchsorted(self._before, index, side="right")) - 1
        return int(self._starts[episode] + index - self._before[episode])

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of one window, each [length, ...], read now."""
        start = self.start(int(index))
        return {key: np.asarray(array[start : start + self.length]) for key, array in self.arrays.items()}

    def batch(self, indices: Sequence[int] | NDArray[np.integer]) -> dict[str, NDArray[Any]]:
        """Return several windows, each array [len(indices), length, ...].

        Raises:
            IndexError: There is no such window.
            ValueError: No index is given.
        """
        windows = [self[int(index)] for index in indices]
        if not windows:
            raise ValueError(f"{self.name}: expected at least one window, received none")
        return {key: np.stack([window[key] for window in windows]) for key in self.arrays}

    def __repr__(self) -> str:
        """Show the sizes."""
        return f"{type(self).__name__}({self.name!r}, {len(self.episode_ends)} episodes, {len(self)} windows)"


class PushT(EpisodeWindows):
    """Demonstrations of pushing a T to its place: images, states and actions, from a Zarr replay buffer.

    Source: Chi et al., "Diffusion policy: visuomotor policy learning via action diffusion", RSS 2023; the file is
    `pusht_cchi_v7_replay.zarr`. Needs zarr (`pip install 'noeira[episodes]'`).

    Args:
        path: The `.zarr` folder, with `data/img`, `data/state`, `data/action` and `meta/episode_ends`.
        length: Steps a window.
        names: Which arrays, and their paths in the file; by default the three.

    Raises:
        DatasetError: zarr is missing, or the file is not such a replay buffer; the message says what is missing.

    Example:
        >>> windows = PushT("pusht_cchi_v7_replay.zarr", length=16)  # doctest: +SKIP
        >>> windows[0]["action"].shape  # doctest: +SKIP
        (16, 2)
    """

    default_names: ClassVar[dict[str, str]] = {"image": "data/img", "state": "data/state", "action": "data/action"}

    def __init__(self, path: str | os.PathLike[str], length: int, *, names: Mapping[str, str] | None = None) -> None:
        """See the class."""
        path = Path(path)
        group = _open_zarr(path)
        arrays = {key: _member(group, path, name) for key, name in (names or self.default_names).items()}
        super().__init__(arrays, np.asarray(_member(group, path, "meta/episode_ends")[:]), length, name=path.name)


class LeWMPushT(EpisodeWindows):
    """PushT demonstrations for world models, from an HDF5 file: pixels, states and actions.

    Episodes are given by `ep_offset` and `ep_len` (they must lie end to end), or by `episode_ends`. Needs h5py
    (`pip install 'noeira[episodes]'`). Close it, or use it in a `with` block.

    Args:
        path: The file.
        length: Steps a window.
        names: Which arrays, and their paths in the file.

    Raises:
        DatasetError: h5py is missing, or the file is no such HDF5 file; the message says what is missing.

    Example:
        >>> with LeWMPushT("pusht_expert_train.h5", length=4) as windows:  # doctest: +SKIP
        ...     windows[0]["image"].shape
        (4, 224, 224, 3)
    """

    default_names: ClassVar[dict[str, str]] = {"image": "pixels", "state": "state", "action": "action"}

    def __init__(self, path: str | os.PathLike[str], length: int, *, names: Mapping[str, str] | None = None) -> None:
        """See the class."""
        path = Path(path)
        self._file = _open_hdf5(path)
        try:
            arrays = {key: _member(self._file, path, name) for key, name in (names or self.default_names).items()}
            super().__init__(arrays, _hdf5_ends(self._file, path), length, name=path.name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; windows can no longer be read."""
        self._file.close()

    def __enter__(self) -> LeWMPushT:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()


def _hdf5_ends(file: Any, path: Path) -> NDArray[Any]:
    if "episode_ends" in file:
        return np.asarray(file["episode_ends"][:])
    lengths, offsets = (np.asarray(_member(file, path, name)[:]) for name in ("ep_len", "ep_offset"))
    ends = np.cumsum(lengths)
    if lengths.shape != offsets.shape or not np.array_equal(offsets, ends - lengths):
        raise DatasetError(f"{path}: ep_offset", "episodes end to end, each where the one before ends", "other offsets")
    return ends


def _member(group: Any, path: Path, name: str) -> Any:
    try:
        member = group[name]
    except KeyError:
        raise DatasetError(path, f"an array {name}", f"only {', '.join(sorted(group)) or 'nothing'}") from None
    if not hasattr(member, "shape"):
        raise DatasetError(path, f"an array {name}", "a group of that name")
    return member


def _open_zarr(path: Path) -> Any:
    try:
        import zarr  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DatasetError(path, "zarr, which reads it", str(error), _FIX) from error
    if not path.exists():
        raise DatasetError(path, "a Zarr folder", "nothing at this path")
    try:
        return zarr.open_group(str(path), mode="r")
    except Exception as error:  # zarr has an error of its own for every way a folder can be wrong
        raise DatasetError(path, "a Zarr group", f"{type(error).__name__}: {error}") from error


def _open_hdf5(path: Path) -> Any:
    try:
        import h5py  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DatasetError(path, "h5py, which reads it", str(error), _FIX) from error
    if not path.exists():
        raise DatasetError(path, "an HDF5 file", "nothing at this path")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise DatasetError(path, "an HDF5 file", str(error)) from error
