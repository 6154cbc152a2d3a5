"""Docstrings: every public layer and loss says the same things in the same order, and every example runs."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import noeira
from noeira import nn

SECTIONS = ("Shape", "vjp", "Example", "Source")
BASES = {nn.Module, nn.Loss, nn.Activation, nn.Formula, nn.BatchNorm, nn.ElementwiseLoss}
"""Classes to inherit from, which have no example of their own."""

PUBLIC = [
    member
    for name in sorted(nn.__all__)
    if inspect.isclass(member := getattr(nn, name)) and issubclass(member, nn.Module | nn.Loss) and member not in BASES
]
MODULES = [
    info.name for info in pkgutil.walk_packages(noeira.__path__, "noeira.") if not info.name.endswith("__main__")
]


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: cls.__name__)
def test_a_layer_states_its_formula_shapes_vjp_example_and_source(cls: type) -> None:
    text = cls.__dict__.get("__doc__") or ""
    first = text.split("\n\n")[0]
    assert re.search(r"[.;:]$", first.strip()), f"the first paragraph is no sentence: {first!r}"
    places = {name: re.search(rf"^    {name}:", text, re.M) for name in SECTIONS}
    missing = [name for name, found in places.items() if found is None]
    assert not missing, f"{cls.__name__} does not state: {', '.join(missing)}"
    starts = [found.start() for found in places.values() if found is not None]
    assert starts == sorted(starts), f"{cls.__name__}: expected the sections in the order {', '.join(SECTIONS)}"
    assert ">>>" in text, f"{cls.__name__}: an example is run"
    arguments = [
        name
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if name != "self" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    own = "__init__" in cls.__dict__
    unexplained = [name for name in arguments if own and not re.search(rf"^ +\*?{name}:", text, re.M)]
    assert not unexplained, f"{cls.__name__} does not explain: {', '.join(unexplained)}"


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.chdir(tmp_path)  # type: ignore[arg-type]
    monkeypatch.setenv("NOEIRA_CACHE", str(tmp_path))
    failed, _ = doctest.testmod(importlib.import_module(name), verbose=False)
    assert failed == 0
