"""The program store is sound before it is fast: nothing stale, nothing damaged, nothing lost."""

import os
import threading
import warnings

import numpy as np
import pytest

from noeira import ops
from noeira.nn import Adam, ArrayDataset, CrossEntropyLoss, Dropout, Linear, LinearReLU, LinearTanh, Module, Sequential
from noeira.nn.training.staging import DataSpec, train_step
from noeira.runtime import devices, kernel_library, store
from noeira.runtime.devices import Device
from noeira.runtime.staging import StagedGraph

CPU = Device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NOEIRA_CACHE", str(tmp_path))
    return tmp_path


def graph_of(rule=lambda x: ops.activation(x, "relu"), shape=("b", 4), dtype="float32"):
    graph = StagedGraph("g")
    return graph.finish(rule(graph.input("x", shape, dtype)))


def key(**options):
    return store.program_key([graph_of(**options)], CPU)


def step_key(net, spec=None, dtype="float32"):
    net.to(dtype=dtype)
    data = ArrayDataset(np.zeros((8, 4), np.float32), np.zeros(8, np.int32))
    graph, _ = train_step(net, CrossEntropyLoss(), spec or DataSpec.of(data), dtype)
    return store.program_key([graph], CPU)


# ---- nothing stale ------------------------------------------------------------------------------------------------


def test_the_same_program_has_the_same_key():
    assert key() == key()
    assert step_key(Sequential(Linear(4, 3))) == step_key(Sequential(Linear(4, 3)))


def test_an_edited_kernel_changes_the_key(tmp_path, monkeypatch):
    import shutil

    before = key()
    copy = tmp_path / "mojo_kernels"
    shutil.copytree(kernel_library.kernel_sources(), copy)
    monkeypatch.setattr(kernel_library, "kernel_sources", lambda: copy)
    kernel_library.library_hash.cache_clear()
    try:
        assert key() == before  # the same sources elsewhere are the same library
        source = copy / "random.mojo"
        source.write_text(source.read_text().replace("range(10)", "range(9)"))
        kernel_library.library_hash.cache_clear()
        assert key() != before
    finally:
        kernel_library.library_hash.cache_clear()


def test_a_renamed_or_added_kernel_file_changes_the_hash(tmp_path):
    (tmp_path / "a.mojo").write_text("x")
    before = kernel_library.source_hash(tmp_path)
    (tmp_path / "a.mojo").rename(tmp_path / "b.mojo")
    renamed = kernel_library.source_hash(tmp_path)
    (tmp_path / "c.mojo").write_text("")
    assert len({before, renamed, kernel_library.source_hash(tmp_path)}) == 3


def test_an_edited_op_changes_the_key(monkeypatch):
    before = key()
    monkeypatch.setattr(ops.activation, "_rule", lambda x, name: ops.multiply(x, x))
    assert key() != before


def test_an_edited_lowering_or_another_version_changes_the_key(monkeypatch):
    before = key()
    for old, new in (("max 26", "max 27"), ("mojo 1", "mojo 9"), ("lowering ", "lowering x"), ("python 3", "python 4")):
        text = store._toolchain()
        assert old in text
        with monkeypatch.context() as patch:
            patch.setattr(store, "_toolchain", lambda text=text, old=old, new=new: text.replace(old, new))
            assert key() != before, f"{old} is not part of the key"


def test_an_edited_layer_changes_the_key():
    class Scaled(Linear):
        factor = 2.0

        def forward(self, x):
            y, saved = super().forward(x)
            return ops.multiply(y, self.factor), saved

    before = step_key(Sequential(Scaled(4, 3)))
    assert step_key(Sequential(Linear(4, 3))) != before
    Scaled.factor = 3.0
    assert step_key(Sequential(Scaled(4, 3))) != before


def test_structure_modes_and_freezing_change_the_key():
    def net():
        return Sequential(LinearReLU(4, 8), Dropout(0.5), Linear(8, 3))

    frozen, evaluation, other_p = net(), net(), Sequential(LinearReLU(4, 8), Dropout(0.4), Linear(8, 3))
    frozen[0].freeze()
    evaluation.eval()
    tanh = Sequential(LinearTanh(4, 8), Dropout(0.5), Linear(8, 3))
    wider = Sequential(LinearReLU(4, 9), Dropout(0.5), Linear(9, 3))
    keys = [step_key(n) for n in (net(), frozen, evaluation, other_p, tanh, wider)]
    assert len(set(keys)) == len(keys)


def test_a_users_module_is_keyed_by_what_it_emits():
    class Mine(Module):
        def __init__(self, act):
            self.act = act

        def forward(self, x):
            return ops.activation(x, self.act), x

        def vjp(self, saved, grad_output):
            return ops.activation_grad(grad_output, saved, self.act)

    assert step_key(Sequential(Mine("silu"), Linear(4, 3))) != step_key(Sequential(Mine("mish"), Linear(4, 3)))
    assert step_key(Sequential(Mine("silu"), Linear(4, 3))) == step_key(Sequential(Mine("silu"), Linear(4, 3)))


def test_dtype_data_type_and_scale_change_the_key():
    specs = [
        DataSpec((4,), "float32", (), "int32", 1.0),
        DataSpec((4,), "uint8", (), "int32", 1.0),
        DataSpec((4,), "uint8", (), "int32", 1 / 255),
        DataSpec((4,), "float32", (3,), "float32", 1.0),
    ]
    keys = [step_key(Sequential(Linear(4, 3)), spec) for spec in specs]
    keys.append(step_key(Sequential(Linear(4, 3)), specs[0], "float64"))
    assert len(set(keys)) == len(keys)


def test_the_number_of_samples_and_the_batch_size_do_not_change_the_key():
    def of(rows):
        return DataSpec.of(ArrayDataset(np.zeros((rows, 4), np.float32), np.zeros(rows, np.int32)))

    assert step_key(Sequential(Linear(4, 3)), of(5)) == step_key(Sequential(Linear(4, 3)), of(500))


def test_loss_options_change_the_key():
    def of(loss):
        net = Sequential(Linear(4, 3))
        net.init()
        return store.program_key(
            [train_step(net, loss, DataSpec((4,), "float32", (), "int32", 1.0), "float32")[0]], CPU
        )

    losses = [
        CrossEntropyLoss(),
        CrossEntropyLoss(label_smoothing=0.1),
        CrossEntropyLoss(weight=[1, 2, 3]),
        CrossEntropyLoss(weight=[1, 2, 4]),
        CrossEntropyLoss(ignore_index=-1),
    ]
    assert len({of(loss) for loss in losses}) == len(losses)


def test_optimizer_numbers_are_data_not_code():
    from noeira.nn.training.staging import optimizer_step

    assert optimizer_step(Adam(1e-3), "float32").text() == optimizer_step(Adam(3e-4, weight_decay=1), "float32").text()


def test_device_and_cpu_target_change_the_key(monkeypatch):
    before = key()
    monkeypatch.setattr(devices, "cpu_target", lambda: "cpu Linux x86_64 sse2")
    assert key() != before


@pytest.mark.parametrize("name", store.CODE_SETTINGS)
def test_settings_that_change_code_change_the_key(name, monkeypatch):
    before = key()
    monkeypatch.setenv(name, "something")
    assert key() != before


def test_the_cpu_target_names_instruction_sets():
    target = devices.cpu_target()
    assert target.startswith("cpu ")
    assert len(target.split()) > 3


# ---- nothing damaged ----------------------------------------------------------------------------------------------

KEY = "k" * 40
PAYLOAD = bytes(range(256)) * 50


def stored(cache):
    assert store.save(KEY, PAYLOAD, ["g"])
    return cache / "programs" / f"{KEY}.noeira"


def test_round_trip(cache):
    stored(cache)
    assert store.load(KEY) == PAYLOAD
    assert store.load("absent") is None
    assert [path.name for path in (cache / "programs").iterdir()] == [f"{KEY}.noeira"]


@pytest.mark.parametrize("length", [0, 1, 10, 17, 40, 300, -1])
def test_a_cut_file_is_ignored_with_a_warning(cache, length):
    path = stored(cache)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.warns(store.StoreWarning, match="ignoring the stored program"):
        assert store.load(KEY) is None


@pytest.mark.parametrize("position", [0, 5, 18, 60, 200, 1000, -1])
def test_a_flipped_bit_is_noticed(cache, position):
    path = stored(cache)
    blob = bytearray(path.read_bytes())
    blob[position] ^= 1
    path.write_bytes(blob)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = store.load(KEY)
    # a flip inside the descriptive part of the header changes nothing that is used
    assert result == PAYLOAD or (result is None and len(caught) == 1)
    if position in (0, 5, 1000, -1):
        assert result is None


def test_a_longer_file_is_ignored(cache):
    path = stored(cache)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.warns(store.StoreWarning, match="expected 12800 bytes of program, found 12801"):
        assert store.load(KEY) is None


@pytest.mark.parametrize("blob", [b"", b"hello", b"\x7fELF" + b"\0" * 500, os.urandom(4096)])
def test_a_foreign_file_is_ignored(cache, blob):
    path = stored(cache)
    path.write_bytes(blob)
    with pytest.warns(store.StoreWarning, match="not a noeira program file"):
        assert store.load(KEY) is None


def test_a_file_under_another_name_is_ignored(cache):
    path = stored(cache)
    path.rename(path.with_name("other.noeira"))
    with pytest.warns(store.StoreWarning, match="stored under another key"):
        assert store.load("other") is None


def test_a_directory_in_the_way_is_reported(cache):
    (cache / "programs" / f"{KEY}.noeira").mkdir(parents=True)
    with pytest.warns(store.StoreWarning, match="cannot read"):
        assert store.load(KEY) is None
    with pytest.warns(store.StoreWarning, match="cannot keep"):
        assert not store.save(KEY, PAYLOAD, ["g"])


def test_a_read_only_store_still_serves(cache, monkeypatch):
    stored(cache)

    def deny(*args, **kwargs):
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", deny)
    monkeypatch.setattr("noeira.runtime.cache.open", deny, raising=False)
    assert store.load(KEY) == PAYLOAD
    with pytest.warns(store.StoreWarning, match="compiled again next time"):
        assert not store.save("n" * 40, PAYLOAD, ["g"])


def test_a_cache_that_cannot_exist_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NOEIRA_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(store.StoreWarning):
        assert store.load(KEY) is None
    with pytest.warns(store.StoreWarning):
        assert not store.save(KEY, PAYLOAD, ["g"])


def test_a_failed_write_leaves_nothing_behind(cache, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.warns(store.StoreWarning, match="No space left"):
            assert not store.save(KEY, PAYLOAD, ["g"])
    assert list((cache / "programs").iterdir()) == []


def test_the_store_is_bounded_and_keeps_what_was_used_last(cache, monkeypatch):
    monkeypatch.setenv("NOEIRA_STORE_BYTES", str(3 * len(PAYLOAD) + 3000))
    for i, name in enumerate(("a", "b", "c")):
        store.save(name, PAYLOAD, ["g"])
        os.utime(cache / "programs" / f"{name}.noeira", (1000 + i, 1000 + i))
    assert store.load("a") == PAYLOAD  # used: now the newest
    store.save("d", PAYLOAD, ["g"])
    assert {path.stem for path in (cache / "programs").iterdir()} == {"a", "c", "d"}


def test_the_newest_program_stays_even_if_it_alone_is_too_large(cache, monkeypatch):
    monkeypatch.setenv("NOEIRA_STORE_BYTES", "10")
    stored(cache)
    assert store.load(KEY) == PAYLOAD


@pytest.mark.parametrize("value", ["-1", "1.5", "much", ""])
def test_a_bad_limit_is_an_error(value, monkeypatch):
    monkeypatch.setenv("NOEIRA_STORE_BYTES", value)
    with pytest.raises(ValueError, match="NOEIRA_STORE_BYTES: expected a number of bytes"):
        store.limit_bytes()


def test_concurrent_writers_and_readers_see_whole_files(cache):
    stored(cache)
    errors = []

    def work():
        for _ in range(20):
            if not store.save(KEY, PAYLOAD, ["g"]) or store.load(KEY) != PAYLOAD:
                errors.append("damaged")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
