"""The line shown while compiling."""

import io
import re
import sys
import time

import pytest

from noeira.runtime.compile_progress import compiling


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_lines_without_a_terminal(capsys):
    with compiling("net"):
        pass
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "compiling net ..."
    assert re.fullmatch(r"compiled net in \d+\.\d s", lines[1])


def test_a_line_that_rewrites_itself_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with compiling("net"):
        time.sleep(0.5)
    text = sys.stderr.getvalue()
    assert len(re.findall(r"\r\x1b\[2Kcompiling net \.\.\. \d+\.\d s", text)) >= 2
    assert re.search(r"\r\x1b\[2Kcompiled net in \d+\.\d s\n$", text)


def test_a_failure_is_said(capsys):
    with pytest.raises(ValueError, match="no"), compiling("net"):
        raise ValueError("no")
    assert "failed net in" in capsys.readouterr().err
