"""Philox: known answers, and draws as pure functions of their key."""

import numpy as np
import pytest

from noeira.ops.random import bits, fold_in, normal, philox, stream_of

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("block", "step", "stream", "seed", "expected"),
    [
        (0, 0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, ONES, ONES, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        # counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0 (digits of pi)
        (0x85A308D3243F6A88, 0x13198A2E, 0x03707344, 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers_of_the_paper(block, step, stream, seed, expected):
    words = philox(np.array([block], np.uint64), step, stream, seed)[0]
    assert " ".join(f"{int(word):08x}" for word in words) == expected


def test_an_element_does_not_depend_on_how_many_are_drawn():
    long = bits(1000, seed=3, stream=5, step=7)
    for count in (1, 3, 4, 5, 999):
        np.testing.assert_array_equal(bits(count, seed=3, stream=5, step=7), long[:count])
    assert bits(0, seed=3, stream=5).size == 0


def test_seed_stream_and_step_all_matter():
    draws = {bits(4, seed=a, stream=b, step=c).tobytes() for a in (1, 2, 2**40) for b in (1, 2) for c in (1, 2)}
    assert len(draws) == 12


def test_a_negative_seed_is_a_seed():
    assert bits(4, seed=-1, stream=0).tolist() == bits(4, seed=2**64 - 1, stream=0).tolist()


def test_words_are_uniform():
    words = bits(100_000, seed=0, stream=0)
    counts = np.bincount(words >> 28, minlength=16)
    assert abs(counts - 6250).max() < 5 * np.sqrt(6250)


def test_folding_gives_new_keys_and_keeps_seed_and_step():
    root = np.array([11, 22, 0, 99], np.int64)
    keys = [fold_in(root, number) for number in range(1000)]
    assert len({int(key[2]) for key in keys}) == 1000
    assert all(key[0] == 11 and key[1] == 22 for key in keys)
    assert int(fold_in(keys[0], 1)[2]) != int(fold_in(keys[1], 0)[2])


def test_streams_are_named():
    assert stream_of("0#1") != stream_of("1#0")
    assert 0 <= stream_of("anything") < 2**32


def squares(counter: int, key: int) -> int:
    """Widynski's generator, in Python's integers."""
    rotated = lambda x: (x >> 32 | x << 32) % 2**64  # noqa: E731
    y = counter * key % 2**64
    z = (y + key) % 2**64
    x = rotated((y * y + y) % 2**64)
    x = rotated((x * x + z) % 2**64)
    x = rotated((x * x + y) % 2**64)
    return (x * x + z) % 2**64 >> 32


def test_normal_numbers_come_from_squares_with_a_key_from_philox():
    key = np.array([5, 7, 11], np.int64)
    tops = [int(word) >> 31 for word in bits(64, seed=5, step=7, stream=11)]
    inner = sum(bit << i for i, bit in enumerate(tops)) | 1
    for i, z in enumerate(normal(key, (50,), "float64")):
        u, v = ((squares(2 * i + j, inner) + 0.5) / 2**32 for j in (0, 1))
        assert z == pytest.approx(np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v), rel=1e-13, abs=1e-13)


def test_normal_numbers_are_normal():
    n = 1 << 14
    moments = []
    for seed in range(40):
        z = normal(np.array([seed, 1, 2], np.int64), (n,), "float64")
        following = np.sqrt(n) * np.mean(z[1:] * z[:-1])
        fourth = (np.mean(z**4) - 3) * np.sqrt(n / 96)
        moments.append([z.mean() * np.sqrt(n), (z.var() - 1) * np.sqrt(n / 2), fourth, following])
    deviations = np.array(moments)  # each entry is about N(0, 1)
    assert np.abs(deviations).max() < 4.5
    assert np.abs(deviations.mean(axis=0)).max() < 4.5 / np.sqrt(40)
    assert deviations.std(axis=0).min() > 0.6 and deviations.std(axis=0).max() < 1.5


def test_a_normal_number_depends_on_its_key_and_place_alone():
    key = np.array([1, 2, 3], np.int64)
    long = normal(key, (40, 5))
    assert np.array_equal(normal(key, (3, 5)), long[:3]) and normal(key, (0, 5)).shape == (0, 5)
    assert np.array_equal(normal(key, (200,)), long.reshape(-1))
    draws = {normal(np.array(k, np.int64), (4,)).tobytes() for k in ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4))}
    assert len(draws) == 4
    assert np.array_equal(normal(key, (9,), "float64").astype(np.float32), normal(key, (9,)))
