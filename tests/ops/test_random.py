"""Philox: known answers, and draws as pure functions of their key."""

import numpy as np
import pytest

from noeira.ops.random import bits, fold_in, philox, stream_of

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
