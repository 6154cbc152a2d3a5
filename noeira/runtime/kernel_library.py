"""The kernel library: `mojo_kernels/` compiled once per source hash into a package MAX can import.

MAX recompiles a kernel FOLDER for every graph; a precompiled `.mojoc` is read in milliseconds. The file name
holds the hash of all sources and of the compiler's version, so an edited kernel never meets an old library.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

from noeira.runtime.cache import build_atomically, cache_root
from noeira.runtime.compile_progress import compiling


class KernelBuildError(RuntimeError):
    """The Mojo compiler refused the kernel sources; the message holds its diagnostics."""


def kernel_sources() -> Path:
    """Folder of the Mojo package: next to `noeira/` in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "mojo_kernels", package / "mojo_kernels"):
        if (folder / "__init__.mojo").is_file():
            return folder
    raise FileNotFoundError(
        f"noeira's Mojo kernels are missing: looked for mojo_kernels/__init__.mojo in {package.parent} and {package}"
    )


def source_hash(folder: Path) -> str:
    """Hash of every `.mojo` file's path and bytes, and of the Mojo version."""
    digest = hashlib.sha256(version("mojo-compiler").encode())
    for path in sorted(folder.rglob("*.mojo")):
        digest.update(f"\0{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def library_hash() -> str:
    """`source_hash` of this installation's kernels, read once a process."""
    return source_hash(kernel_sources())


def kernel_library() -> Path:
    """Path of the compiled kernel library, built now if this source hash has none.

    Raises:
        KernelBuildError: The sources do not compile.
    """
    folder = cache_root() / "kernels"
    path = folder / f"noeira_{library_hash()[:32]}.mojoc"  # MAX imports it under this name: an identifier
    if path.is_file():
        return path
    with compiling("kernel library"):
        try:
            build_atomically(path, _precompile)
        except OSError:  # a read-only cache: keep the library for this process only
            path = Path(tempfile.mkdtemp(prefix="noeira-kernels-")) / path.name
            _precompile(path)
    return path


def _precompile(path: Path) -> None:
    from mojo.run import subprocess_run_mojo

    with tempfile.TemporaryDirectory(prefix="noeira-kernels-") as scratch:
        # what is compiled is what was hashed: a copy, taken whole, so an edit meanwhile cannot get in
        sources = Path(scratch) / "mojo_kernels"
        shutil.copytree(kernel_sources(), sources)
        if source_hash(sources) != library_hash():
            raise KernelBuildError(
                f"the kernel sources in {kernel_sources()} changed while this process ran: start again"
            )
        result = subprocess_run_mojo(["precompile", str(sources), "-o", str(path)], capture_output=True, text=True)
    if result.returncode != 0 or not path.is_file():
        raise KernelBuildError(f"mojo precompile failed with code {result.returncode}:\n{result.stderr.strip()}")
