"""What a probe measures of its node's machine, on the machine of the test."""

import os
import shutil
from pathlib import Path

import pytest

from distributed_grid.monitoring.on_node_probe.files import read_text
from distributed_grid.monitoring.on_node_probe.host import Host, session_folder


def host_of(cmdline: str) -> Host:
    pid = os.getpid()
    return Host(lambda path: cmdline if path == f"/proc/{pid}/cmdline" else read_text(path), pid)


def test_the_disk_is_that_of_rays_session(tmp_path: Path) -> None:
    found = host_of(f"raylet\0--session_dir={tmp_path}\0").levels()
    space = shutil.disk_usage(tmp_path)
    assert found["disk_total"] == space.total
    assert found["disk_used"] >= space.used  # what is reserved for root counts as used, as for Ray


def test_a_disk_that_cannot_be_measured_is_left_out(tmp_path: Path) -> None:
    found = host_of(f"raylet\0--session_dir={tmp_path / 'gone'}\0").levels()
    assert "disk_total" not in found
    assert found["memory_total"] > 0


@pytest.mark.parametrize(
    ("cmdline", "folder"),
    [
        ("raylet\0--session_dir=/data/ray/session_1\0--x=--session_dir=/no", "/data/ray/session_1"),
        ("raylet\0--x=1\0", "/tmp"),
        (None, "/tmp"),
    ],
)
def test_the_session_folder_is_the_one_on_the_raylets_command_line(cmdline: str | None, folder: str) -> None:
    assert session_folder(cmdline) == folder
