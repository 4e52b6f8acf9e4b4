"""Real disks that are small, full or read-only. Mounting is for root; elsewhere these tests are skipped."""

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str = "96k") -> Iterator[Path]:
    """The folder is a file system of its own, of this size."""
    folder.mkdir(parents=True, exist_ok=True)
    with _mounted("-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)):
        yield folder


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """No process can write to the folder meanwhile, not even root's; files that are open stay so."""
    with _mounted("--bind", str(folder), str(folder)):
        _mount("-o", "remount,bind,ro", str(folder))
        yield


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """There is not a byte of space left in the folder meanwhile."""
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError as error:
                    assert error.errno == errno.ENOSPC
        yield
    finally:
        ballast.unlink()


@contextmanager
def _mounted(*args: str) -> Iterator[None]:
    _mount(*args)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", args[-1]], check=True)


def _mount(*args: str) -> None:
    try:
        done = subprocess.run(["mount", *args], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"this needs the right to mount file systems: {done.stderr.strip()}")
