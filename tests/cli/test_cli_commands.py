"""What all commands have in common: examples in --help, synonyms, suggestions, completion, lengths of time."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from served_grid import ServedGrid

from distributed_grid.cli.app import app
from distributed_grid.cli.commands import TIME, Command, Group
from distributed_grid.errors import InvalidDuration
from distributed_grid.model.times import LENGTHS, parse_instant
from distributed_grid.store.home import GridHome


def leaves(group: click.Group = app, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


def groups(group: click.Group = app, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Group]]:
    assert isinstance(group, Group)
    yield path, group
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        if isinstance(found := group.get_command(ctx, name), click.Group):
            yield from groups(found, (*path, name))


GROUPS = dict(groups())
LEAVES = dict(leaves())
TAKES_TIME = [
    (path, option.opts[-1])
    for path, command in LEAVES.items()
    for option in command.params
    if option.metavar == TIME or {*option.opts} & {"--duration", "--wait", "--grace", "--expires", "--horizon"}
]
EXAMPLES = [line for each in LEAVES.values() if isinstance(each, Command) for line in each.examples]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    found = ServedGrid(tmp_path_factory.mktemp("commands"))
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def at_home(served: ServedGrid, monkeypatch: pytest.MonkeyPatch) -> ServedGrid:
    monkeypatch.setenv("GRID_HOME", str(served.home.path))
    return served


def completed(*words: str) -> list[str]:
    *before, incomplete = words
    items = ShellComplete(app, {}, "grid", "_GRID_COMPLETE").get_completions(before, incomplete)
    return [item.value for item in items]


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_help_has_examples(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"]).output
    assert "Examples:\n  " in shown
    assert f"grid {' '.join(path)}" in shown.partition("Examples:")[2]


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_is_a_command_that_grid_accepts(line: str) -> None:
    typed = line.partition(" | ")[0].partition(" > ")[0].partition(" >> ")[0].partition(" < ")[0]
    words = shlex.split(typed.removeprefix('eval "$(').removesuffix(')"'))
    assert words.pop(0) == "grid"
    command, ctx = app, click.Context(app, info_name="grid")
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(ctx, words)
        assert found is not None
        command, ctx = found, click.Context(found, info_name=name, parent=ctx)
    command.make_context(str(name), words, parent=ctx.parent)  # raises on an option or argument that it does not take


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_summaries_are_not_cut(path: tuple[str, ...]) -> None:
    group = GROUPS[path]
    listed = " ".join(CliRunner().invoke(app, [*path, "--help"]).output.partition("Commands:")[2].split())
    for name, summary in group.summaries(click.Context(group)).items():
        assert f"{name} {summary}" in listed
        assert summary.endswith(".") and "..." not in summary


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["bost"], "Did you mean: grid boost?"),
        (["boost", "relase"], "Did you mean: grid boost release?"),
        (["resource-sharing", "policy", "sho"], "Did you mean: grid resource-sharing policy show?"),
        (["request"], "Did you mean: grid boost request or grid resource-sharing request?"),
        (["boost", "request", "a", "cpu", "1", "--durration", "5"], "--duration"),
    ],
)
def test_a_near_miss_is_told_what_was_probably_meant(words: list[str], meant: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert meant in done.stderr


@pytest.mark.parametrize("group", ["boost", "node", "token", "tasks", "roles", "cluster", "offload"])
def test_listing_has_one_meaning_whichever_word_is_typed(group: str) -> None:
    found = app.get_command(click.Context(app), group)
    assert isinstance(found, Group)
    assert len({found.get_command(click.Context(found), word) for word in ("ls", "list", "status")}) == 1
    assert found.get_command(click.Context(found), "ls") is not None


def test_lengths_of_time_have_one_syntax(at_home: ServedGrid) -> None:
    def lasts() -> float:
        boost = at_home.client.boost_status()["boosts"][0]
        return (parse_instant(boost["expires_at"]) - datetime.now(UTC)).total_seconds()

    def typed(*words: str) -> None:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output

    typed("boost", "request", "a", "cpu", "1", "--duration", "1h30m", "--grace", "2m", "--wait", "1m")
    assert 5300 < lasts() <= 5400
    boost_id = at_home.client.boost_status()["boosts"][0]["boost_id"]
    typed("boost", "renew", boost_id, "--duration", "2d")
    assert 172700 < lasts() <= 172800
    typed("boost", "release", boost_id, "--grace", "0", "--wait", "10s")


VALID = {"--at": "daily 09:00"}


def an_argument(argument: click.Parameter) -> str:
    return "1" if argument.name == "amount" or isinstance(argument.type, click.IntRange) else "cpu"


@pytest.mark.parametrize(("path", "option"), TAKES_TIME, ids=lambda one: one if isinstance(one, str) else " ".join(one))
def test_every_option_that_takes_a_length_of_time_takes_that_syntax_and_checks_it_first(
    at_home: ServedGrid, path: tuple[str, ...], option: str
) -> None:
    command = LEAVES[path]
    words = [an_argument(each) for each in command.params if isinstance(each, click.Argument) and each.required]
    required = [each.opts[0] for each in command.params if isinstance(each, click.Option) and each.required]
    others = [word for each in required if each != option for word in (each, VALID.get(each, "1h"))]
    asked = [*path, option, "1h30", *others, *(["--", "true"] if path == ("run",) else words)]

    error = CliRunner().invoke(app, asked).exception

    assert isinstance(error, InvalidDuration), error
    assert f"must be a length of time such as {LENGTHS}, not '1h30'" in error.message
    assert "TIME is a number of seconds, or a length such as" in CliRunner().invoke(app, [*path, "--help"]).output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    done = CliRunner().invoke(app, ["completion", shell])
    assert done.exit_code == 0
    assert "_GRID_COMPLETE" in done.output


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(("typed", "found"), [(["bo"], "boost"), (["boost", "request", "a", "c"], "cpu")])
def test_bash_completes_with_its_script(at_home: ServedGrid, typed: list[str], found: str) -> None:
    line = shlex.join(["grid", *typed])
    script = f"""
        eval "$(grid completion bash)"
        COMP_WORDS=({line}) COMP_CWORD={len(typed)}
        "$(complete -p grid | grep -o '[^ ]*_completion')" grid
        echo "${{COMPREPLY[@]}}"
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "-c", script], env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=60
    )

    assert (done.stdout, done.stderr) == (f"{found}\n", "")


def test_names_ids_and_words_are_completed(at_home: ServedGrid) -> None:
    boost = at_home.client.request_boost({"target_node": "a", "resource_type": "cpu", "amount": 1})
    short = boost["boost_id"][:8]
    try:
        assert completed("bo") == ["boost"]
        assert "request" in completed("boost", "re")
        assert completed("boost", "request", "") == ["a", "b", "c"]
        assert completed("boost", "request", "a", "") == ["cpu", "gpu", "memory"]
        assert completed("boost", "request", "a", "cpu", "1", "--priority", "h") == ["high"]
        assert completed("boost", "request", "a", "cpu", "1", "--source", "") == ["a", "b", "c"]
        assert short in completed("boost", "release", short[:2])
        assert short in completed("why", "")
        assert completed("run", "--boost", short[:4]) == [short]
        assert completed("resource-sharing", "policy", "set", "ag") == ["aggressive"]
    finally:
        at_home.client.release_boost(boost["boost_id"])


def test_without_a_controller_nothing_is_completed_and_nothing_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRID_HOME", str(tmp_path))
    assert completed("boost", "request", "") == []
    assert completed("boost", "request", "a", "") == ["cpu", "gpu", "memory"]
    assert capfd.readouterr() == ("", "")


def test_a_controller_that_hangs_does_not_hold_up_the_shell(
    at_home: ServedGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = GridHome(tmp_path / "home").create()
    home.token.write_text(at_home.home.token.read_text())
    monkeypatch.setenv("GRID_HOME", str(home.path))
    monkeypatch.setattr("distributed_grid.cli.parameters.PATIENCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        home.controller.write_text(at_home.home.controller.read_text().replace(at_home.url, url))
        began = time.monotonic()
        assert completed("boost", "request", "") == []
        assert time.monotonic() - began < 20
        silent.settimeout(0.0)
        silent.accept()[0].close()  # it was asked
