"""The program runs once, in the user's surroundings, and nothing that it started is left when it is ended."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from live_grid import until

from distributed_grid.errors import InvalidRequest
from distributed_grid.monitoring.cpu_meter import CpuMeter
from distributed_grid.run.driver import Driver

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
{more}
time.sleep(600)
"""

ID = re.compile(r"^(\d+)$", re.MULTILINE)


def start(code: str, tmp_path: Path) -> tuple[Driver, Path]:
    output = tmp_path / "output"
    with output.open("wb") as file:
        return Driver([sys.executable, "-c", code], os.environ, file), output


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("", 0), ("raise SystemExit(7)", 7), ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137)],
)
def test_its_exit_code_is_reported_as_a_shell_tells_it(code: str, exit_code: int, tmp_path: Path) -> None:
    driver, _ = start(code, tmp_path)
    assert driver.wait(60) == exit_code
    assert driver.end(0.0) == exit_code


@pytest.mark.parametrize("more", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_what_it_started_ends_with_it(more: str, tmp_path: Path) -> None:
    driver, output = start(PARENT.format(more=more), tmp_path)
    until(lambda: ID.search(output.read_text()), 60, "the child's id")  # libraries may write lines of their own
    child = psutil.Process(int(ID.findall(output.read_text())[-1]))
    assert driver.wait(0) is None
    assert driver.end(0.2) in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_it_does_not_go_on_without_the_process_that_holds_its_lease(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
sys.path[:0] = {sys.path!r}
from distributed_grid.run.driver import Driver
driver = Driver([sys.executable, "-c", "import time; time.sleep(600)"], os.environ)
print(driver.pid, flush=True)
time.sleep(600)
"""
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    program = psutil.Process(int(holder.stdout.readline()))
    holder.kill()
    holder.wait()
    until(lambda: not program.is_running() or program.status() == psutil.STATUS_ZOMBIE, 30, "the program's end")


def test_what_is_no_command_is_said() -> None:
    with pytest.raises(InvalidRequest, match="There is no command"):
        Driver(["no-such-command-here"], os.environ)
    with pytest.raises(InvalidRequest, match="cannot be executed"):
        Driver([__file__], os.environ)


def test_a_program_is_above_itself_and_what_it_starts_on_this_machine() -> None:
    driver = Driver(["sh", "-c", "sleep 600 & sleep 600"], os.environ)
    try:
        below = until(lambda: psutil.Process(driver.pid).children())[0].pid

        assert driver.is_above(driver.pid, "127.0.0.1")
        assert driver.is_above(below, "127.0.0.1")
        assert not driver.is_above(os.getpid(), "127.0.0.1")
        assert not driver.is_above(below, "192.0.2.250")
    finally:
        driver.end(0.0)


COMPUTES = """
import os, subprocess, sys, time
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "a child"])  # its time counts after its end, too
    left_behind = f"{sys.executable} {__file__} another & sleep 3"
    subprocess.run(["sh", "-c", left_behind])
    time.sleep(600)
parent = os.getppid()
while sys.argv[1] == "another" and os.getppid() == parent:
    time.sleep(0.1)
end = time.process_time() + 1.0
while time.process_time() < end:
    pass
print(os.getpid(), flush=True)
time.sleep(600 if sys.argv[1] == "another" else 0)
"""


def test_the_cpu_time_of_a_program_is_that_of_everything_that_it_started(tmp_path: Path) -> None:
    script, output = tmp_path / "computes.py", tmp_path / "output"
    script.write_text(COMPUTES)
    with output.open("wb") as file:
        driver = Driver([sys.executable, str(script)], os.environ, file)
    meter, read = CpuMeter(driver.pid), [0.0]

    def have_computed() -> list[str]:
        if (used := meter.read()) is not None:
            read.append(used)
        return ids if len(ids := ID.findall(output.read_text())) == 2 else []

    assert meter.read() is not None
    assert meter.read() is None, "it was read a moment ago"
    left_behind = int(until(have_computed, 60, "a child has computed, and one whose parent has ended")[1])
    try:
        used = until(meter.read, 60, "it can be read again")
        assert used >= 1.9
        assert read == sorted(read)
        assert until(meter.read, 60, "it can be read again") - used < 0.2, "all of them wait"
    finally:
        driver.end(0.0)
        os.kill(left_behind, signal.SIGKILL)
