"""The real data through the real sources; skipped, with the reason, where none has it."""

import hashlib
import re

import numpy as np
import pytest

from noeira.nn.datasets import MNIST, DatasetError, FashionMNIST
from noeira.nn.datasets.mnist import ImageDataset

pytestmark = pytest.mark.real_data

HISTOGRAMS = {
    MNIST: (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    FashionMNIST: ([6000] * 10, [1000] * 10),
}
FIRST_LABELS = {MNIST: [5, 0, 4, 1, 9, 2, 1, 3, 1, 4], FashionMNIST: [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]}
MEAN_PIXEL = {MNIST: 0.1307, FashionMNIST: 0.2860}


@pytest.mark.parametrize("dataset", HISTOGRAMS)
def test_real_data(dataset: type[ImageDataset], tmp_path):
    try:
        ds = dataset(tmp_path)
    except DatasetError as error:
        # A source that gives other data than it should is a failure, not an absence.
        if re.search("expected (MD5|shape|uint8)", str(error)):
            raise
        pytest.skip(str(error))
    assert ds.train.inputs.shape == (60000, 1, 28, 28) and ds.train.inputs.dtype == np.uint8
    assert ds.test.inputs.shape == (10000, 1, 28, 28) and ds.test.inputs.dtype == np.uint8
    for part, histogram in zip((ds.train, ds.test), HISTOGRAMS[dataset], strict=True):
        assert part.targets.dtype == np.int32 and part.input_scale == 1 / 255
        assert np.bincount(part.targets).tolist() == histogram
        assert len(part.class_names) == 10
    assert ds.train[:10].targets.tolist() == FIRST_LABELS[dataset]
    assert abs(float(ds.train.arrays()[0].mean(dtype=np.float64)) - MEAN_PIXEL[dataset]) < 1e-4
    for file in ds.spec.files:
        content = (tmp_path / ds.spec.name / file.name).read_bytes()
        assert hashlib.md5(content).hexdigest() == file.md5

    warm = dataset(tmp_path, download=False)
    np.testing.assert_array_equal(warm.train.inputs, ds.train.inputs)
