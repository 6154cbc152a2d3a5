"""A tied weight is one tensor, with one update, whoever uses it (case 18)."""

import copy

import numpy as np
import pytest

from noeira import nn
from noeira.runtime.programs import build
from tests.compare import Case, assert_close, reference
from tests.compiled import CPU, run_case, stage


def test_walks_and_copies_see_one_parameter() -> None:
    net = nn.Sequential(nn.Embedding(7, 3), nn.TiedLinear(nn.Embedding(7, 3)))
    net[1].weight = net[0].weight  # type: ignore[union-attr]
    assert list(net.named_parameters()) == ["0.weight"] and net.num_parameters == 21
    twin = copy.deepcopy(net)
    assert twin[0].weight is twin[1].weight and twin[0].weight is not net[0].weight  # type: ignore[union-attr]


def _model() -> nn.Sequential:
    embedding = nn.Embedding(7, 3)
    return nn.Sequential(embedding, nn.Repeat(2, lambda: nn.LinearTanh(3, 3)), nn.TiedLinear(embedding))


def test_w_times_w_x() -> None:
    source = nn.Embedding(1, 1)
    net = nn.Sequential(nn.TiedLinear(source), nn.TiedLinear(source)).init()
    source.weight.val = np.array([[3.0]])
    y, saved = net.forward(np.array([[2.0]], np.float32))
    net.vjp(saved, np.ones((1, 1), np.float32))
    assert y == 18 and source.weight.grd == 12


def test_zero_linear_starts_at_zero_under_any_initializer() -> None:
    assert not nn.ZeroLinear(3, 4).init(nn.Xavier()).weight.val.any()


@pytest.mark.compiled
def test_compiled_gradients_of_both_uses_add_up() -> None:
    ids = np.array([[2, 2, 0], [6, 1, 2]], np.int32)
    repeated = nn.Embedding(3, 3)
    chains = {
        "tied_model": (_model(), ids),
        "tied_calls": (nn.Sequential(nn.TiedLinear(repeated), nn.Repeat(1, lambda: nn.TiedLinear(repeated))),
                       np.eye(3, dtype=np.float32)),
    }  # fmt: skip
    cases = {name: Case(name, net, (x,)) for name, (net, x) in chains.items()}
    graphs = [
        stage(name, case.subject, [(("b", 3), case.inputs[0].dtype.name)]) for name, case in cases.items()
    ]  # fmt: skip
    programs = build(graphs, CPU, "two tied models")
    for name, case in cases.items():
        assert_close(case, run_case(programs[name], case), reference(case), 1e-5)
