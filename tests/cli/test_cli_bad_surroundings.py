"""A full disk, a closed stdout, an endless file, a token that is not text, a stopped controller: no tracebacks."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

GRID = str(Path(sys.executable).with_name("grid"))


def shell(line: str, home: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", line.replace("grid ", f"{GRID} ", 1)],
        env=os.environ | {"GRID_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("command", ["config show", "config schema", "--help"])
@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_a_stdout_that_cannot_be_written_is_a_message(tmp_path: Path, command: str, where: str, why: str) -> None:
    done = shell(f"grid {command} {where}", tmp_path)

    assert (done.returncode, done.stderr) == (1, f"Error: Cannot write to stdout: {why}\n")


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    done = shell("set -o pipefail; grid config schema | head -c 10", tmp_path)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["config check /dev/zero", "roles plan /dev/zero"])
def test_a_file_without_an_end_is_refused(tmp_path: Path, command: str) -> None:
    done = shell(f"grid {command}", tmp_path)

    assert done.returncode == 2
    assert "is larger than 4 MB" in done.stderr


def test_a_token_that_is_not_text_is_reported(tmp_path: Path) -> None:
    (tmp_path / "controller.json").write_text(json.dumps({"url": "http://127.0.0.1:9", "ray_address": "127.0.0.1:9"}))
    (tmp_path / "token").write_bytes(b"\xff\xfe\x00")
    for file in tmp_path.iterdir():
        file.chmod(0o600)

    done = shell("grid boost status", tmp_path)

    assert done.returncode == 6
    assert "cannot be read: it is not text in UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


NOTHING_LENT = {"total_active": 0, "resources": {}, "boosts": [], "cut": False, "problems": []}


def test_a_command_says_that_it_waits_for_a_stopped_controller_long_before_it_gives_up(tmp_path: Path) -> None:
    """The controller goes on only once this was said, and still answers the command's first call."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and does not answer
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "controller.json").write_text(json.dumps({"url": f"http://{at}", "ray_address": at}))
        (tmp_path / "token").write_text("0123456789abcdef0123456789abcdef")
        with subprocess.Popen(
            [GRID, "boost", "status"],
            env=os.environ | {"GRID_HOME": str(tmp_path)},
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as waiting:
            assert waiting.stderr is not None
            first_line = waiting.stderr.readline()
            if waiting.poll() is None:
                answer(silent, NOTHING_LENT)
            shown, more = waiting.communicate(timeout=60)

    assert (first_line, more) == (f"Waiting for the controller at http://{at} to answer ...\n", "")
    assert waiting.returncode == 0
    assert shown.startswith("Active boosts: 0")


def answer(server: socket.socket, data: object) -> None:
    body = json.dumps(data).encode()
    connection, _ = server.accept()
    with connection:
        assert connection.recv(65536).startswith(b"GET /api/v1/boosts?")
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
