"""Texts for language models: any file, TinyShakespeare, and the vocabulary of a text's characters."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from noeira.nn.datasets.idx import DatasetError
from noeira.nn.datasets.raw import RawFile, obtain_raw


class Tokenizer(Protocol):
    """What turns a text into ids and back."""

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        ...

    def encode(self, text: str) -> NDArray[np.int32]:
        """The ids of a text."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids."""
        ...


class CharTokenizer:
    """One id a character: the distinct characters of a text, sorted.

    Args:
        text: Gives the vocabulary; only which characters occur matters.

    Raises:
        ValueError: The text is empty.

    Example:
        >>> tokenizer = CharTokenizer("hello")
        >>> tokenizer.vocab_size, tokenizer.encode("hole").tolist(), tokenizer.decode([1, 0, 2, 2])
        (4, [1, 3, 2, 0], 'hell')
    """

    def __init__(self, text: str) -> None:
        """See the class."""
        if not text:
            raise ValueError("CharTokenizer: expected a text with at least one character, received an empty one.")
        codes = np.unique(_code_points(text))
        self.characters = "".join(map(chr, codes.tolist()))
        self._codes = codes

    @property
    def vocab_size(self) -> int:
        """The number of distinct characters."""
        return len(self.characters)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the ids of a text.

        Args:
            text: Characters of the vocabulary.

        Raises:
            ValueError: A character is not in the vocabulary; the message says which, and where it stands.
        """
        codes = _code_points(text)
        ids = np.searchsorted(self._codes, codes).clip(max=self.vocab_size - 1)
        unknown = self._codes[ids] != codes
        if unknown.any():
            at = int(np.argmax(unknown))
            raise ValueError(
                f"CharTokenizer: expected characters of its {self.vocab_size}, received {text[at]!r} at position {at}; "
                f"build the tokenizer from a text that has it."
            )
        return ids.astype(np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids.

        Args:
            ids: 0 to vocab_size - 1.

        Raises:
            ValueError: An id is out of range.
        """
        array = np.asarray(list(ids), np.int64)
        if array.size and not (0 <= array.min() and array.max() < self.vocab_size):
            raise ValueError(
                f"CharTokenizer: expected ids 0 to {self.vocab_size - 1}, received {array.min()} to {array.max()}."
            )
        return "".join(self.characters[i] for i in array)

    def __repr__(self) -> str:
        """Show the vocabulary's size and its beginning."""
        return f"CharTokenizer({self.vocab_size} characters, {self.characters[:20]!r}...)"


class TextFile:
    """A text as ids: the beginning to train on, the rest to validate on.

    Args:
        path: The file.
        tokenizer: Turns the text into ids; by default one id a character of this text.
        val_fraction: The share kept back: the last N - int(N (1 - val_fraction)) ids.
        encoding: Of the file.

    Attributes:
        text: The whole text.
        tokenizer: As given, or a `CharTokenizer` of the text.
        train: int32 [int(N (1 - val_fraction))].
        val: int32, the rest.

    Raises:
        DatasetError: The file is empty, or not of that encoding.
        OSError: It cannot be read.
        ValueError: `val_fraction` is not in [0, 1).

    Example:
        >>> Path("hello.txt").write_text("hello world")  # doctest: +SKIP
        >>> TextFile("hello.txt").train.shape  # doctest: +SKIP
        (9,)
    """

    text: str
    tokenizer: Tokenizer
    train: NDArray[np.int32]
    val: NDArray[np.int32]

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tokenizer: Tokenizer | None = None,
        val_fraction: float = 0.1,
        encoding: str = "utf-8",
    ) -> None:
        """See the class."""
        if not 0 <= val_fraction < 1:
            raise ValueError(f"TextFile: expected val_fraction in [0, 1), received {val_fraction}.")
        self.path = Path(path)
        content = self.path.read_bytes()
        try:
            self.text = content.decode(encoding)
        except UnicodeDecodeError as error:
            received = f"byte 0x{content[error.start]:02x} at offset {error.start}"
            raise DatasetError(self.path, f"text in {encoding}", received, "Pass its encoding=.") from error
        if not self.text:
            raise DatasetError(self.path, "a text of at least one character", "an empty file")
        self.tokenizer = CharTokenizer(self.text) if tokenizer is None else tokenizer
        ids = self.tokenizer.encode(self.text)
        count = int(len(ids) * (1 - val_fraction))
        self.train, self.val = ids[:count], ids[count:]

    def __repr__(self) -> str:
        """Show the sizes."""
        sizes = f"train=int32[{len(self.train)}], val=int32[{len(self.val)}], vocabulary of {self.tokenizer.vocab_size}"
        return f"{type(self).__name__}({self.path.name!r}, {sizes})"


class TinyShakespeare(TextFile):
    """40 000 lines of Shakespeare, 1.1 million characters of 65 kinds, as in char-rnn and nanoGPT.

    Sources, in order: the cache; `input.txt` or `tinyshakespeare.txt` in `$NOEIRA_TINYSHAKESPEARE_DIR`; public mirrors.

    Args:
        root: The cache to use in place of `$NOEIRA_CACHE` or `~/.cache/noeira`; the file lies in its folder
            `tinyshakespeare`.
        tokenizer: Turns the text into ids; by default one id a character.
        val_fraction: The share kept back.
        download: Whether the network may be used. Local sources are always tried.

    Raises:
        DatasetError: No source had the file; the message says which file to put where.

    Example:
        >>> corpus = TinyShakespeare()  # doctest: +SKIP
        >>> corpus  # doctest: +SKIP
        TinyShakespeare('input.txt', train=int32[1003854], val=int32[111540], vocabulary of 65)
    """

    file: ClassVar[RawFile] = RawFile(
        "input.txt",
        1_115_394,
        "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        (
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            "https://storage.googleapis.com/download.tensorflow.org/data/shakespeare.txt",
        ),
        ("tinyshakespeare.txt",),
    )

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        val_fraction: float = 0.1,
        download: bool = True,
    ) -> None:
        """See the class."""
        path = obtain_raw("tinyshakespeare", self.file, "NOEIRA_TINYSHAKESPEARE_DIR", root, download=download)
        super().__init__(path, tokenizer=tokenizer, val_fraction=val_fraction)


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
