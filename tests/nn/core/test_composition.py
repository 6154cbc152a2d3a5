"""Composed forwards: what they may do, what they give, and what is refused."""

import copy

import numpy as np
import pytest

from noeira import nn, ops
from noeira.nn import Module, composed
from noeira.ops.random import fold_in, stream_of
from tests.compare import Case, assert_torch
from tests.compiled import stage


class Net(Module):
    def __init__(self):
        self.body, self.head, self.drop = nn.LinearTanh(4, 4), nn.Linear(4, 2), nn.Dropout(0.5)

    @composed
    def forward(self, x):
        return self.head(x + self.drop(self.body(x)))


X = np.ones((3, 4), np.float32)


def test_it_is_the_vjp_written_by_hand():
    net = Net().init(seed=0).to(dtype="float64")
    x, dy = np.random.default_rng(0).normal(size=(3, 4)), np.random.default_rng(1).normal(size=(3, 2))
    nn.seed(1)
    y, saved = net.forward(x)
    dx = net.vjp(saved, dy)
    got = {name: param.grd.copy() for name, param in net.named_parameters().items()}
    net.zero_grad()
    hidden, kept_body = net.body.forward(x)
    mask = ops.dropout(np.ones_like(hidden), fold_in(np.array([1, 1, 0]), stream_of("drop#1")), 0.5)
    again, kept_head = net.head.forward(x + hidden * mask)
    np.testing.assert_allclose(again, y)
    grad = net.head.vjp(kept_head, dy)
    want = grad + net.body.vjp(kept_body, grad * mask)
    np.testing.assert_allclose(dx, want)
    for name, param in net.named_parameters().items():
        np.testing.assert_allclose(got[name], param.grd, err_msg=name)


def test_modes_and_attributes_are_looked_at_each_time():
    class Switch(Module):
        def __init__(self):
            self.a, self.b, self.use_b = nn.Linear(4, 4), nn.Linear(4, 4), False

        @composed
        def forward(self, x):
            h = self.b(x) if self.use_b else self.a(x)
            return h if self.training else h * 2.0

    net = Switch().init(seed=0)
    first = net(X)
    np.testing.assert_array_equal(net.eval()(X), 2 * first)
    net.use_b = True
    y, saved = net.forward(X)
    net.vjp(saved, y)
    assert net.b.weight.grd.any() and not net.a.weight.grd.any()
    texts = [stage("net", net, [(("b", 4), "float32")]).text()]
    net.use_b = False
    net.train()
    texts.append(stage("net", net, [(("b", 4), "float32")]).text())
    assert texts[0] != texts[1]


def test_paths_names_and_copies():
    net = nn.Sequential(Net()).init(seed=0)
    assert list(net.named_parameters()) == ["0.body.weight", "0.body.bias", "0.head.weight", "0.head.bias"]
    with pytest.raises(nn.ShapeError, match=r"module '0\.body' \(LinearTanh\(4, 4\)\): expected .* got \[3, 5\]"):
        net(np.ones((3, 5), np.float32))
    net.eval()
    np.testing.assert_array_equal(copy.deepcopy(net)(X), net(X))
    np.testing.assert_array_equal(net(X.astype(np.float64)), net(X))


class Outer(Module):
    """Composed forwards inside each other, twice the same, with a tuple in between."""

    def __init__(self):
        self.two, self.last = Two(), nn.Linear(4, 2)

    @composed
    def forward(self, x):
        a, b = self.two(x)
        c, _ = self.two(a, scale=0.5)
        return self.last(b - c)


class Two(Module):
    def __init__(self):
        self.a, self.b = nn.LinearTanh(4, 4), nn.LinearTanh(4, 4)

    @composed
    def forward(self, x, *, scale=1.0):
        return self.a(x) * scale, self.b(x)


def test_nested_forwards_tuples_and_options():
    def twin(params, x):
        def layer(name, x):
            return (x @ params[f"two.{name}.weight"] + params[f"two.{name}.bias"]).tanh()

        c = 0.5 * layer("a", layer("a", x))
        return (layer("b", x) - c) @ params["last.weight"] + params["last.bias"]

    assert_torch(Case("nested", Outer(), (np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32),), twin))


def test_a_subclass_calls_the_forward_above():
    class Scaled(Net):
        @composed
        def forward(self, x):
            return super().forward(x) * 3.0

    net = Scaled().init(seed=0).eval()
    plain = Net().init(seed=0).eval()
    np.testing.assert_array_equal(net(X), 3 * plain(X))
    y, saved = net.forward(X)
    np.testing.assert_allclose(net.vjp(saved, y), plain.vjp(plain.forward(X)[1], 3 * y), rtol=1e-6)


def test_masks_and_ids_pass_and_get_no_gradient():
    class Tokens(Module):
        def __init__(self):
            self.table, self.layer = nn.Embedding(5, 4), nn.Linear(4, 4)

        @composed
        def forward(self, ids):
            return self.layer(self.table(ids)) + self.table(np.array([[0, 1, 2]]))

    net = Tokens().init(seed=0)
    y, saved = net.forward(np.array([[1, 1, 3]]))
    assert net.vjp(saved, y) is None and net.table.weight.grd[[0, 1, 2, 3]].all() and not net.table.weight.grd[4].any()


def test_an_optional_input_may_be_given_as_none():
    class Decoder(Module):
        def __init__(self, given):
            self.gru, self.lstm = nn.GRUSeq(3, 4), nn.LSTMSeq(4, 4)
            self.cross, self.block = nn.MultiHeadCrossAttention(4, 2), nn.DecoderBlock(4, 2)
            self.given = given

        @composed
        def forward(self, x, memory):
            if not self.given:
                return self.block(self.cross(self.lstm(self.gru(x)), memory), memory)
            return self.block(self.cross(self.lstm(self.gru(x, None), None), memory, None), memory, None)

    class Cells(Module):
        def __init__(self, given):
            self.gru, self.lstm, self.given = nn.GRUCell(3, 4), nn.LSTMCell(4, 4), given

        @composed
        def forward(self, x):
            return self.lstm(self.gru(x, None), None) if self.given else self.lstm(self.gru(x))

    rng = np.random.default_rng(2)
    for cls, shapes in ((Decoder, ((2, 5, 3), (2, 6, 4))), (Cells, ((2, 3),))):
        inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        gradients = []
        for given in (False, True):
            net = cls(given).init(seed=1)
            y, saved = net.forward(*inputs)
            dx = net.vjp(saved, y)
            gradients.append(
                [y, *(dx if isinstance(dx, tuple) else (dx,)), *(p.grd for p in net.named_parameters().values())]
            )
        assert len(gradients[0]) > 5
        for left, right in zip(*gradients, strict=True):
            np.testing.assert_array_equal(left, right)


def forward_of(function):
    class Wrong(Module):
        def __init__(self):
            self.layer, self.scale = nn.Linear(4, 4), nn.Param((4,))

        forward = composed(function)

    return Wrong()


REFUSED = {
    "an op": (lambda self, x: ops.exp(x), r"stands for an array|does not support ufuncs"),
    "a function of NumPy": (lambda self, x: np.exp(x), r"ufunc"),
    "a branch on values": (
        lambda self, x: self.layer(x) if x else x,
        r"stands for an array, and is none: in a composed forward",
    ),
    "a comparison": (lambda self, x: x > 0, r"stands for an array"),
    "a part": (lambda self, x: x[0], r"stands for an array"),
    "a method": (lambda self, x: x.sum(), r"Value\(float32\[3, 4\]\) has no 'sum': in a composed forward"),
    "a parameter": (lambda self, x: x * self.scale.val, r"expected a number or a value .*, got ndarray, which would"),
    "a parameter in front": (lambda self, x: self.scale.val * x, r"got ndarray, which would get no gradient"),
    "an array for a module": (
        lambda self, x: nn.Add()(x, np.ones((3, 4), np.float32)),
        r"expected a value that a module gave, a mask or ids, got an array float32\[3, 4\]",
    ),
    "a module's forward": (lambda self, x: self.layer.forward(x)[0], r"call Linear\(4, 4\) itself, not its forward"),
    "the output and what is saved": (lambda self, x: (self.layer(x), None), r"or a tuple of values, got NoneType"),
    "an array as output": (lambda self, x: np.zeros(3), r"to return a value, or a tuple of values, got an array float"),
    "a keyword": (lambda self, x: self.layer(x, factor=x), r"was given a value as a keyword; pass it by position"),
    "a reciprocal": (lambda self, x: 1 / x, r"a value cannot divide 1"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_composed_forward_may_not_do(what):
    function, match = REFUSED[what]
    with pytest.raises((TypeError, AttributeError), match=match):
        forward_of(function)(X)


def test_a_value_does_not_outlive_its_forward():
    class Leaky(Module):
        def __init__(self):
            self.layer, self._last = nn.Linear(4, 4), None

        @composed
        def forward(self, x):
            before, self._last = self._last, self.layer(x)
            return self._last if before is None else self.layer(before)

    net = Leaky()
    net(X)
    with pytest.raises(TypeError, match=r"Value\(float32\[3, 4\]\) belongs to another forward"):
        net(X)
    with pytest.raises(TypeError, match=r"Linear\(4, 4\) was given a value of a forward that has ended"):
        net.layer(net._last)


def test_an_output_that_is_neither_array_nor_tuple_is_refused():
    class Named(Module):
        def forward(self, x):
            return {"y": x}, None

    net = forward_of(lambda self, x: self.layer(x))
    net.layer = Named()
    with pytest.raises(TypeError, match=r"expected Named\(\) to give arrays or tuples of them, got dict"):
        net(X)


def test_both_a_vjp_and_a_composed_forward_are_refused():
    with pytest.raises(TypeError, match="Both: a composed forward has its vjp already"):

        class Both(Module):
            @composed
            def forward(self, x):
                return x

            def vjp(self, saved, grad_output):
                return grad_output


def test_an_input_that_nothing_depends_on_gets_none_and_one_returned_as_it_is_gets_its_own():
    class Odd(Module):
        @composed
        def forward(self, a, b, c):
            return a, a, c

    a, b, c = np.ones((3, 1, 2))
    y, saved = Odd().forward(a, b, c)
    assert len(y) == 3
    da, db, dc = Odd().vjp(saved, (a, 2 * a, 5 * c))
    assert db is None and da.tolist() == [[3.0, 3.0]] and dc.tolist() == [[5.0, 5.0]]
