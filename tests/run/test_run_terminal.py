"""A run at a real terminal: what is typed reaches the program once, and both stop, go on and end together."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from live_grid import GRID, until
from served_grid import ServedGrid
from terminal import CTRL_C, CTRL_Z, Terminal

# Writes down which signals it gets. SIGUSR1, which the wrapper passes on after whatever came before it, is its end.
COUNTS = """
import os, signal, sys
more = sys.argv[1:]

def heard(number, frame):
    with open("heard", "a") as file:
        file.write(f"{number}\\n")
    if number == signal.SIGUSR1:
        os._exit(7)

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, heard)
if "by key" in more:
    import tty
    tty.setcbreak(0)
with open("pids", "w") as file:
    file.write(f"{os.getppid()} {os.getpid()}\\n")
while True:
    signal.pause()
"""

READS = """
import os, signal
def resized(number, frame):
    print("now", *os.get_terminal_size(), flush=True)
signal.signal(signal.SIGWINCH, resized)
print("begins with", *os.get_terminal_size(), os.isatty(0), flush=True)
while True:
    print("got", input(), flush=True)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    served = ServedGrid(tmp_path_factory.mktemp("served"))
    yield served
    served.close()


@pytest.fixture
def program(tmp_path: Path) -> Iterator["Program"]:
    program = Program(tmp_path)
    yield program
    program.end()


@pytest.fixture
def terminal(served: ServedGrid, tmp_path: Path) -> Iterator[Terminal]:
    env = os.environ | {"GRID_HOME": str(served.home.path), "GRID": GRID}
    terminal = Terminal(tmp_path, env)
    yield terminal
    terminal.close()
    until(lambda: not leases(served), 10, "the lease is returned")


def leases(served: ServedGrid) -> list[str]:
    return [boost["boost_id"] for boost in served.client.boost_status()["boosts"]]


class Program:
    """The one that counts, from outside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "counts.py").write_text(COUNTS)

    def until_it_runs(self) -> None:
        path = self._folder / "pids"
        until(lambda: path.exists() and path.read_text().endswith("\n"), 30, "the program runs")
        self.wrapper, self.itself = (psutil.Process(int(pid)) for pid in path.read_text().split())

    def heard(self) -> list[int]:
        path = self._folder / "heard"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until_heard(self, *numbers: int) -> None:
        until(lambda: len(self.heard()) >= len(numbers), 30, f"{numbers} heard by the program, not {self.heard()}")
        assert self.heard() == list(numbers)

    def after_all_that(self) -> None:
        """The wrapper has passed on all it was to: signals are taken by their number, and this is a high one."""
        self.wrapper.send_signal(signal.SIGUSR1)

    def end(self) -> None:
        for process in (getattr(self, "wrapper", None), getattr(self, "itself", None)):
            if process is not None and process.is_running():
                process.kill()


@pytest.mark.parametrize(
    "line",
    [
        "$GRID run -- counts.py",
        "$GRID run -- counts.py | tee log",
        "$GRID run -- counts.py 2>&1 | tee log",  # which Ctrl-C ends, too: what is said then is not read
        "$GRID run -- counts.py 2> log",
        "$GRID run -- counts.py < /dev/null > log 2>&1",
    ],
)
def test_ctrl_c_reaches_the_program_once_wherever_its_output_goes(
    terminal: Terminal, program: Program, line: str
) -> None:
    terminal.run(line)
    program.until_it_runs()

    terminal.type(CTRL_C)

    program.until_heard(signal.SIGINT)
    program.after_all_that()
    program.until_heard(signal.SIGINT, signal.SIGUSR1)
    assert terminal.until_ended() == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_sent_to_the_wrapper_reaches_the_program_once(
    terminal: Terminal, program: Program, number: signal.Signals
) -> None:
    terminal.run("$GRID run -- counts.py")
    program.until_it_runs()

    program.wrapper.send_signal(number)

    program.until_heard(number)
    program.after_all_that()
    program.until_heard(number, signal.SIGUSR1)
    assert terminal.until_ended() == 128 + number


def test_without_a_terminal_it_is_the_same(served: ServedGrid, program: Program, tmp_path: Path) -> None:
    env = os.environ | {"GRID_HOME": str(served.home.path)}
    run = subprocess.Popen(
        [GRID, "run", "--", "counts.py"],
        env=env,
        cwd=tmp_path,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    program.until_it_runs()
    assert program.wrapper.pid == run.pid
    os.kill(run.pid, signal.SIGINT)
    program.until_heard(signal.SIGINT)
    program.after_all_that()
    program.until_heard(signal.SIGINT, signal.SIGUSR1)
    assert run.wait(60) == 130


def test_a_waiting_user_learns_that_a_second_ctrl_c_ends_it_now(terminal: Terminal, program: Program) -> None:
    terminal.run("$GRID run -- counts.py | tee log")
    program.until_it_runs()
    terminal.type(CTRL_C)
    terminal.until_shown("press Ctrl-C again to end it now")
    assert program.itself.is_running()

    terminal.type(CTRL_C)

    assert terminal.until_ended() == 130
    assert not program.itself.is_running()


def test_to_a_program_that_reads_key_by_key_ctrl_c_is_a_key(terminal: Terminal, program: Program) -> None:
    """A Python prompt, a debugger: no user wants these to be gone."""
    terminal.run("$GRID run -- counts.py 'by key'")
    program.until_it_runs()
    for count in (1, 2, 3):
        terminal.type(CTRL_C)
        program.until_heard(*[signal.SIGINT] * count)
    program.after_all_that()
    program.until_heard(*[signal.SIGINT] * 3, signal.SIGUSR1)
    assert terminal.until_ended() == 7


def test_what_nohup_keeps_away_is_kept_away(terminal: Terminal, program: Program) -> None:
    terminal.run("nohup $GRID run -- counts.py > log 2>&1")
    program.until_it_runs()
    program.wrapper.send_signal(signal.SIGHUP)
    program.after_all_that()
    program.until_heard(signal.SIGUSR1)
    assert terminal.until_ended() == 7


def test_the_program_reads_from_the_terminal_and_knows_its_size_also_after_ctrl_z(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "reads.py").write_text(READS)
    terminal.run("$GRID run -- reads.py")
    terminal.until_shown("begins with 80 24 True")
    terminal.type("hello\n")
    terminal.until_shown("got hello")
    terminal.resize(40, 100)
    terminal.until_shown("now 100 40")

    terminal.type(CTRL_Z)
    terminal.until_shown("Stopped")
    terminal.until_ended()
    terminal.run("jobs -p")
    wrapper = psutil.Process(int(terminal.until_shown("[ended 0]").splitlines()[-2]))
    [program] = wrapper.children()
    until(lambda: {wrapper.status(), program.status()} == {psutil.STATUS_STOPPED}, 30, "both have stopped")

    terminal.run("fg")
    terminal.type("again\n")
    terminal.until_shown("got again")
    terminal.type(CTRL_C)
    assert terminal.until_ended() == 130
    assert not program.is_running()


def test_what_is_refused_at_the_terminal_is_in_no_list(terminal: Terminal) -> None:
    terminal.run("$GRID run --cpus 99 -- true")
    assert terminal.until_ended() == 4
    terminal.run("$GRID tasks ls | cat")
    assert " true" not in terminal.until_shown("[ended 0]")


def test_what_is_refused_in_the_background_is_listed_with_why(terminal: Terminal) -> None:
    terminal.run("$GRID run --detach --cpus 99 -- false")
    assert terminal.until_ended() == 4
    assert "No nodes have sufficient available resources" in terminal.shows()
    terminal.run("$GRID tasks ls | cat")
    listed = terminal.until_shown("[ended 0]")
    [line] = [line for line in listed.splitlines() if line.endswith(" false")]
    run = line.split()[0]
    assert line.split()[1] == "refused"
    assert f"{run}: No nodes have sufficient available resources" in listed
    terminal.run(f"$GRID tasks show {run}")
    assert "b: " in terminal.until_shown("[ended 0]"), "why not, for every node"


@pytest.mark.parametrize(("how", "says"), [("", "cancelled before the program began"), ("--detach ", "Stopped.")])
def test_ctrl_c_while_it_waits_for_capacity_leaves_nothing_behind(
    terminal: Terminal, served: ServedGrid, how: str, says: str
) -> None:
    for source in ("b", "c"):
        body = {"target_node": "a", "resource_type": "cpu", "amount": "8", "source_node": source, "delivery": "reserve"}
        served.client.request_boost(body)
    body = {"target_node": "b", "resource_type": "cpu", "amount": "8", "source_node": "a", "delivery": "reserve"}
    served.client.request_boost(body)
    try:
        terminal.run(f"$GRID run {how}--cpus 8 --wait 600 -- touch ran")
        until(lambda: served.client.queue()["requests"], 30, "it waits")
        terminal.type(CTRL_C)
        assert terminal.until_ended() == 130
        assert says in terminal.shows()
        until(lambda: not served.client.queue()["requests"], 30, "no request waits")
        terminal.run("$GRID tasks ls | cat")
        states = [
            line.split()[1] for line in terminal.until_shown("[ended 0]").splitlines() if line.endswith(" touch ran")
        ]
        assert states == (["cancelled"] if how else [])
        assert not (terminal.folder / "ran").exists()
    finally:
        for boost in leases(served):
            served.client.release_boost(boost)
