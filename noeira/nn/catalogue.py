"""The catalogue of layers, models and losses: `python -m noeira.nn.catalogue [PATTERN]` prints it.

What is printed is taken from the classes themselves: constructor parameters, and the sections of their docstrings.
"""

from __future__ import annotations

import argparse
import fnmatch
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass

from noeira import nn


@dataclass(frozen=True)
class Entry:
    """One public class.

    Args:
        name: Its name in `noeira.nn`.
        family: The file that defines it, without its folder and suffix.
        parameters: Constructor parameters with their defaults.
        summary: The docstring's first sentence.
        shape: The docstring's section of that name, on one line.
    """

    name: str
    family: str
    parameters: str
    summary: str
    shape: str


def entries(pattern: str = "*") -> list[Entry]:
    """The public layers, combinators, models and losses whose name fits a shell pattern, by family."""
    found = []
    for name in nn.__all__:
        member = getattr(nn, name)
        if inspect.isclass(member) and issubclass(member, nn.Module | nn.Loss) and fnmatch.fnmatch(name, pattern):
            found.append(_entry(name, member))
    order = {"primitives": 0, "combinators": 1, "models": 2, "loss": 3}
    return sorted(found, key=lambda entry: (order.get(entry.family.split(".")[0], -1), entry.family, entry.name))


def _entry(name: str, cls: type) -> Entry:
    text = inspect.getdoc(cls) or ""
    shape = re.search(r"^Shape:\n((?:    .*\n?|\n(?=    ))+)", text, re.M)
    parameters = [p for n, p in inspect.signature(cls.__init__).parameters.items() if n != "self"]
    return Entry(
        name,
        cls.__module__.removeprefix("noeira.nn."),
        ", ".join(str(parameter.replace(annotation=inspect.Parameter.empty)) for parameter in parameters),
        text.split("\n\n")[0].replace("\n", " "),
        " ".join(shape.group(1).split()) if shape else "",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the catalogue."""
    parser = argparse.ArgumentParser(prog="python -m noeira.nn.catalogue", description="Layers, models and losses.")
    parser.add_argument("pattern", nargs="?", default="*", help="only names that fit, such as '*Norm*'")
    wanted = parser.parse_args(arguments).pattern
    family = ""
    found = entries(wanted)
    for entry in found:
        if entry.family != family:
            family = entry.family
            print(f"\n{family}")
        print(f"  {entry.name}({entry.parameters})\n      {entry.summary}")
        if entry.shape:
            print(f"      {entry.shape}")
    print(f"\n{len(found)} classes" if found else f"no class is called {wanted}")
    return 0 if found else 1


if __name__ == "__main__":
    raise SystemExit(main())
