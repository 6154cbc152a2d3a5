import socket
import time

import pytest

from noeira.nn.datasets import DatasetError
from noeira.nn.datasets.download import download

BODY = bytes(range(256)) * 1000


def left(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("stated", [-1, None])
def test_good(server, tmp_path, stated):
    server.body("/a", BODY, stated)
    assert download(f"{server.url}/a", tmp_path / "a", max_bytes=len(BODY)).read_bytes() == BODY
    assert left(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("body", "stated", "match"),
    [
        (BODY, len(BODY) + 1, f"expected {len(BODY) + 1} bytes as the server stated|rest of the file"),
        (BODY + b"!", -1, f"at most {len(BODY)} bytes, received more"),
    ],
)
def test_truncated_or_too_long(server, tmp_path, body, stated, match):
    server.body("/a", body, stated)
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(DatasetError, match=match) as caught:
        download(f"{server.url}/a", tmp_path / "a", max_bytes=len(BODY))
    assert caught.value.where == f"{server.url}/a"
    assert left(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"old"


def test_refused_by_the_server(server, tmp_path):
    with pytest.raises(DatasetError, match=r"/nothing: .*HTTP status 404 \(Not Found\)"):
        download(f"{server.url}/nothing", tmp_path / "a", max_bytes=10)
    assert left(tmp_path) == []


def test_closed_port(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DatasetError, match="received Connection refused"):
        download(f"http://127.0.0.1:{port}/a", tmp_path / "a", max_bytes=10)
    assert left(tmp_path) == []


def test_unknown_name_fails_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")

    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    start = time.monotonic()
    with pytest.raises(DatasetError, match="Name or service not known"):
        download("https://mirror.invalid/a", tmp_path / "a", max_bytes=10)
    assert time.monotonic() - start < 1


def test_silent_host_is_given_up(server, tmp_path):
    server.answers["/a"] = lambda handler: time.sleep(1)
    start = time.monotonic()
    with pytest.raises(DatasetError, match=r"answer within 0.2 s|timed out"):
        download(f"{server.url}/a", tmp_path / "a", max_bytes=10, timeout=0.2)
    assert time.monotonic() - start < 0.8
    assert left(tmp_path) == []


def test_slow_look_up_of_a_name_counts_too(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")

    def slow(*args, **kwargs):
        time.sleep(1)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    start = time.monotonic()
    with pytest.raises(DatasetError, match=r"expected an answer within 0\.2 s, received none"):
        download("https://mirror.invalid/a", tmp_path / "a", max_bytes=10, timeout=0.2)
    assert time.monotonic() - start < 0.8


def test_stall_within_the_body(server, tmp_path):
    def answer(handler):
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"abc")
        handler.wfile.flush()
        time.sleep(0.6)

    server.answers["/a"] = answer
    with pytest.raises(DatasetError, match="expected the rest of the file, received timed out"):
        download(f"{server.url}/a", tmp_path / "a", max_bytes=10, timeout=0.2)
    assert left(tmp_path) == []


def test_trickle_ends_at_the_total_timeout(server, tmp_path):
    def answer(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(10):
            handler.wfile.write(bytes(1 << 16))
            time.sleep(0.05)

    server.answers["/a"] = answer
    with pytest.raises(DatasetError, match=r"expected all within 0.1 s"):
        download(f"{server.url}/a", tmp_path / "a", max_bytes=1 << 24, total_timeout=0.1)
    assert left(tmp_path) == []
