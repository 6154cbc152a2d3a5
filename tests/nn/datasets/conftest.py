"""Small data sets, folders and a local web server for the tests of `noeira.nn.datasets`."""

import contextlib
import gzip
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from noeira.nn.datasets import DatasetSpec, FileSpec, write_idx
from noeira.nn.datasets.idx import idx_header, idx_md5

Answer = Callable[[BaseHTTPRequestHandler], None]


class Small:
    """A data set of a few random pixels, with its specification and its files as bytes."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        shapes = {
            "train-images-idx3-ubyte": (6, 4, 5),
            "train-labels-idx1-ubyte": (6,),
            "t10k-images-idx3-ubyte": (3, 4, 5),
            "t10k-labels-idx1-ubyte": (3,),
        }
        self.arrays = {
            name: rng.integers(0, 256 if len(shape) == 3 else 2, shape, np.uint8) for name, shape in shapes.items()
        }
        self.spec = DatasetSpec(
            "small",
            *(FileSpec(name, array.shape, idx_md5(array)) for name, array in self.arrays.items()),
            class_names=("no", "yes"),
            env="NOEIRA_SMALL_DIR",
        )

    def raw(self, name: str) -> bytes:
        array = self.arrays[name]
        return idx_header(array.shape) + array.tobytes()

    def fill(self, folder: Path, rename: Callable[[str], str] = str) -> Path:
        for name, array in self.arrays.items():
            write_idx(folder / rename(name), array)
        return folder

    def check(self, arrays: dict[str, np.ndarray]) -> None:
        assert set(arrays) == set(self.arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, self.arrays[name])

    def check_cache(self, folder: Path) -> None:
        """Every file is there, plain and whole, with its marker, and nothing else is."""
        expected = {name + end for name in self.arrays for end in ("", ".verified")}
        assert {path.name for path in folder.iterdir()} == expected
        for name in self.arrays:
            assert (folder / name).read_bytes() == self.raw(name)


class Server:
    """A web server on 127.0.0.1: `answers` by path, `asked` in order."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                answer = outer.answers.get(self.path)
                if answer is None:
                    self.send_error(404)
                else:
                    with contextlib.suppress(ConnectionError):  # the client may hang up, by design
                        answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = False  # so that closing waits for the last answer
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def body(self, path: str, body: bytes, stated: int | None = -1) -> None:
        """Answer `path` with `body`; `stated` is the Content-Length if it is to be another, or none."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            if stated is not None:
                handler.send_header("Content-Length", str(len(body) if stated == -1 else stated))
            handler.end_headers()
            handler.wfile.write(body)

        self.answers[path] = answer

    def serve(self, small: Small, folder: str = "") -> str:
        for name in small.arrays:
            self.body(f"{folder}/{name}.gz", gzip.compress(small.raw(name)))
        return self.url + folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Small:
    """A small data set; the cache is a temporary folder and no variable of the user's counts."""
    monkeypatch.setenv("NOEIRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NOEIRA_SMALL_DIR", raising=False)
    return Small()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    # A proxy of the user's would be asked for 127.0.0.1 too.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()
