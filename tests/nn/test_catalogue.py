"""`python -m noeira.nn.catalogue`."""

import inspect

import pytest

from noeira import nn
from noeira.nn import catalogue


def test_every_public_class_is_listed_with_its_parameters() -> None:
    listed = {entry.name: entry for entry in catalogue.entries()}
    public = {
        name
        for name in nn.__all__
        if inspect.isclass(getattr(nn, name)) and issubclass(getattr(nn, name), nn.Module | nn.Loss)
    }
    assert listed.keys() == public
    assert listed["Linear"].parameters.startswith("in_features, out_features, bias=True")
    assert listed["Linear"].family == "primitives.linear" and "out_features" in listed["Linear"].shape
    assert "\n" not in "".join(entry.summary + entry.shape for entry in listed.values())


def test_the_list_can_be_narrowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert catalogue.main(["GroupN*"]) == 0
    printed = capsys.readouterr().out
    assert "GroupNorm(num_groups, num_channels" in printed and "Linear(" not in printed and "1 classes" in printed


def test_no_match_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert catalogue.main(["Nothing"]) == 1
    assert capsys.readouterr().out.strip() == "no class is called Nothing"
