"""Training on windows of a corpus, and generating from what was learnt."""

from pathlib import Path

import numpy as np
import pytest
import torch

from noeira import nn, ops
from noeira.nn.models.generation import choose
from noeira.nn.training import staging
from noeira.ops import control

BLOCK, BATCH, VOCABULARY = 8, 4, 7
CORPUS = (np.arange(500) * 3) % VOCABULARY  # what follows is known from the last token


def _model() -> nn.GPT:
    return nn.GPT(VOCABULARY, block_size=BLOCK, num_layers=1, num_heads=2, embed_dim=16)


def _trainer(model: nn.GPT | None = None, **options: object) -> nn.AutoregressiveTrainer:
    options = {"block_size": BLOCK, "batch_size": BATCH, "run_dir": None, "progress": False, "device": "cpu", **options}
    return nn.AutoregressiveTrainer(model or _model(), nn.AdamW(1e-2), **options)  # type: ignore[arg-type]


def _windows(step: int, seed: int = 0, corpus: np.ndarray = CORPUS) -> tuple[np.ndarray, np.ndarray]:
    counters = np.zeros(control.COUNTERS, np.int64)
    counters[[control.SEED, control.STEP]] = (seed, step)
    return ops.windows(corpus.astype(np.int32), counters, BATCH, BLOCK)


def test_windows_are_runs_of_the_corpus_and_what_follows() -> None:
    corpus = np.arange(100, dtype=np.int32)
    starts = set()
    for step in range(200):
        x, y = _windows(step, corpus=corpus)
        assert (np.diff(x, axis=1) == 1).all() and np.array_equal(y, x + 1)
        starts |= set(x[:, 0].tolist())
    assert starts == set(range(100 - BLOCK)), "every place comes up, the first and the last too"
    assert not np.array_equal(_windows(0)[0], _windows(1)[0])
    assert not np.array_equal(_windows(0)[0], _windows(0, seed=1)[0])
    assert np.array_equal(_windows(5)[0], _windows(5)[0])


@pytest.mark.compiled
def test_it_learns_what_follows_and_says_it(tmp_path: Path) -> None:
    trainer = _trainer(run_dir=tmp_path, peak_flops=1e12)
    history = trainer.fit(CORPUS, CORPUS, iterations=300, evaluate_every=100)
    assert [interval.iteration for interval in history.intervals] == [100, 200, 300] and len(history.losses) == 300
    assert history.val_loss is not None and history.val_loss < 0.1 < history.losses[0]
    assert trainer.evaluate(CORPUS) == history.val_loss
    assert all(interval.mfu == interval.flops_per_second / 1e12 for interval in history.intervals)
    assert history.run_dir is not None and (history.run_dir / "learning_curve.png").is_file()
    said = nn.generate(trainer.model, CORPUS[:3], 12, block_size=BLOCK, temperature=0, device="cpu")
    assert np.array_equal(said, CORPUS[:15])
    heard: list[int] = []
    again = nn.generate(
        trainer.model, CORPUS[:1], 50, block_size=BLOCK, stop=(int(CORPUS[5]),), on_token=heard.append, device="cpu"
    )
    assert again[-1] == CORPUS[5] and heard == again[1:].tolist() and len(again) < 51


@pytest.mark.compiled
def test_a_run_is_a_function_of_its_seed_however_it_is_cut() -> None:
    whole, cut, other = _trainer(), _trainer(), _trainer(seed=1)
    first = whole.fit(CORPUS, iterations=20, evaluate_every=7)
    second = cut.fit(CORPUS, iterations=9).losses
    second += cut.fit(CORPUS, iterations=11, evaluate_every=4).losses
    assert first.losses == second and whole.iteration == cut.iteration == 20
    assert other.fit(CORPUS, iterations=20).losses != first.losses
    for name, param in whole.model.named_parameters().items():
        assert np.array_equal(param.val, cut.model.named_parameters()[name].val), name


@pytest.mark.compiled
def test_the_loss_curve_is_that_of_pytorch_on_the_same_windows() -> None:
    trainer = _trainer()
    trainer.model.init(seed=0)
    params = {n: torch.tensor(np.array(p.val), requires_grad=True) for n, p in trainer.model.named_parameters().items()}
    decay = [params[n] for n, p in trainer.model.named_parameters().items() if p.decay]
    rest = [params[n] for n, p in trainer.model.named_parameters().items() if not p.decay]
    optimizer = torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}], 1e-2, weight_decay=0.01)
    from tests.catalogue_models import _gpt_twin

    twin = _gpt_twin(trainer.model)
    expected = []
    for step in range(40):
        x, y = (torch.tensor(part).long() for part in _windows(step))
        logits = twin(params, x)
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    np.testing.assert_allclose(trainer.fit(CORPUS, iterations=40).losses, expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("corpus", "match"),
    [
        (CORPUS.astype(np.float32), r"expected 'corpus' to be a vector of integer ids, got float32 \[500\]"),
        (CORPUS.reshape(50, 10), r"vector of integer ids, got int64 \[50, 10\]"),
        (CORPUS[:BLOCK], "more than block_size = 8 tokens, got 8"),
        (CORPUS - 1, "expected ids >= 0 that fit int32, got -1 to 5"),
        (CORPUS + 1, "expected ids below 7, the model's vocabulary, got 7"),
    ],
)
def test_a_corpus_that_does_not_fit_is_refused(corpus: np.ndarray, match: str) -> None:
    with pytest.raises(nn.ShapeError, match=match):
        _trainer().fit(corpus, iterations=1)


def test_a_peak_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="expected peak_flops > 0, got 0"):
        _trainer(peak_flops=0)


@pytest.mark.parametrize("options", [{"block_size": 0}, {"batch_size": 0}])
def test_sizes_that_are_no_sizes_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"expected {next(iter(options))} to be an integer >= 1, got 0"):
        _trainer(**options)


LOGITS = np.log(np.array([0.1, 0.6, 0.3]))


@pytest.mark.parametrize(
    ("uniform", "options", "token"),
    [
        (0.05, {}, 1), (0.59, {}, 1), (0.61, {}, 2), (0.95, {}, 0), (0.9999999, {}, 0),
        (0.95, {"temperature": 0}, 1), (0.95, {"top_k": 2}, 2), (0.95, {"top_k": 1}, 1), (0.95, {"top_p": 0.5}, 1),
        (0.95, {"top_p": 0.7}, 2), (0.95, {"top_p": 1.0}, 0), (0.7, {"temperature": 0.01}, 1),
    ],
)  # fmt: skip
def test_choices_by_hand(uniform: float, options: dict[str, float], token: int) -> None:
    assert choose(LOGITS, uniform, **options) == token  # type: ignore[arg-type]


def test_options_out_of_range_are_refused() -> None:
    for options, match in (
        ({"temperature": -1}, "temperature >= 0"), ({"top_k": 0}, "top_k >= 1"), ({"top_p": 0.0}, r"top_p in \(0, 1\]"),
        ({"block_size": 0}, "block_size to be a positive integer, got 0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            nn.generate(_model(), np.array([1]), 3, **{"block_size": BLOCK, **options})  # type: ignore[arg-type]
    with pytest.raises(nn.ShapeError, match=r"prompt of integer ids \[T\], got int64 \[0\]"):
        nn.generate(_model(), np.array([], np.int64), 3, block_size=BLOCK)


def test_the_step_counts_its_products() -> None:
    model = _model().init()
    step, shape = staging.windows_step(model, nn.CrossEntropyLoss(), BATCH, BLOCK)
    assert shape == (BATCH, BLOCK, VOCABULARY)
    assert sum(op.flops for op in step.ops) > 6 * BATCH * BLOCK * 16 * 16 * 10
