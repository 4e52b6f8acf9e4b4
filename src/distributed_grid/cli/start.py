"""grid start and grid stop: grid in a Ray cluster that is already running."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distributed_grid.cli.commands import TIME, Command
from distributed_grid.cli.connection import listening_options
from distributed_grid.cli.output import adopt_option, config_option, json_option, say, say_notes, show
from distributed_grid.model.listening import Listening

if TYPE_CHECKING:
    from distributed_grid.store.home import GridHome
    from distributed_grid.wire.controller import ControllerUp, Stopped


discovered_or_config_option = partial(
    config_option, help="Cluster configuration (default: $GRID_CONFIG, or none: nodes are discovered)."
)


@click.command(
    cls=Command,
    examples=["grid start --address auto", "grid start --address 10.0.0.5:6379 --config my-cluster.yaml --supervise"],
)
@click.option(
    "--address", required=True, metavar="HOST:PORT", help="The Ray cluster; `auto` finds one on this machine."
)
@discovered_or_config_option
@listening_options
@adopt_option
@click.option(
    "--supervise/--no-supervise",
    default=None,
    help="Supervise the controller in the foreground, or not at all.  [default: in a background process]",
)
@json_option
def start(
    address: str, config_path: str | None, listening: Listening, adopt: bool, supervise: bool | None, as_json: bool
) -> None:
    """Add grid to a Ray cluster that is already running.

    Run it on the head node. Without --config or $GRID_CONFIG all nodes are discovered, and named by their Ray
    label grid/name, else by host name.

    A background process then supervises the controller: it restarts the controller if Ray gives up on it, or
    after the head has restarted. grid stop ends this process; --no-supervise does not start it.

    With --supervise, this command supervises in the foreground, for systemd or tmux. SIGTERM and Ctrl-C end it, and
    leave grid and its boosts in the cluster. grid stop returns the boosts, and ends it as well.
    """
    from distributed_grid.client import answers
    from distributed_grid.cluster.attach import start_controller
    from distributed_grid.cluster.supervise import Order, end_supervisors, restored_supervisor, start_supervisor
    from distributed_grid.config import GridConfig, find_config, load_config
    from distributed_grid.controller.listening import checked
    from distributed_grid.errors import AlreadyRunning
    from distributed_grid.store.home import GridHome

    # Errors in the command itself are checked first: a supervisor may need the rest only hours later.
    _check_address(address)
    listening = checked(listening)
    if config_path or os.environ.get("GRID_CONFIG"):
        loaded = load_config(find_config(config_path, os.environ, Path.cwd()))
        for warning in loaded.warnings:
            say(f"Warning: {warning}")
        config, source = loaded.config, str(loaded.source)
    else:
        config, source = GridConfig.discovered(), "no file: nodes are discovered"
    home = GridHome.find().create()

    was_in = False

    def start_it(meanwhile: Callable[[], None] | None = None) -> "ControllerUp":
        nonlocal was_in
        found = start_controller(
            address,
            home,
            config.to_dict(),
            source,
            listening=listening,
            adopt=adopt,
            patient=was_in,  # the first time, errors go to the user who started it
            meanwhile=meanwhile,
        )
        was_in = True
        return found

    def text(found: "ControllerUp") -> str:
        return (
            f"grid is in the cluster at {found['ray_address']} and answers at {found['url']}\n"
            "  grid cluster status    show the nodes\n  grid stop              remove grid again"
        )

    def show_it(found: "ControllerUp") -> None:
        show(found, as_json, text)
        say_notes(found)

    if supervise:
        end_supervisors(home)  # this one takes their place
        _supervise(address, home, start_it, config.digest(), show_it)
        return
    say(f"Adding grid to the Ray cluster at {address} ...")
    try:
        found = start_it()
    except AlreadyRunning as error:
        if answers(home) and (restored := restored_supervisor(home)) is not None:
            raise AlreadyRunning(error.message, because=[*error.because, restored], try_next=error.try_next) from error
        raise
    if supervise is None:
        order = Order(found["ray_address"], config.to_dict(), source, listening.to_dict())
        if (why_not := start_supervisor(home, order)) is not None:
            say(f"Warning: the supervisor did not start, so only Ray restarts the controller: {why_not}")
    else:
        end_supervisors(home)
    show_it(found)


def _check_address(address: str) -> None:
    from distributed_grid.decide.diagnosis import HOW_TO_REACH
    from distributed_grid.errors import InvalidRequest
    from distributed_grid.model.checkup_facts import Trouble
    from distributed_grid.model.listening import AUTO, why_no_address

    if address != AUTO and (why_not := why_no_address(address)):
        raise InvalidRequest(
            f"{address} is not the address of a Ray cluster", because=[why_not], try_next=HOW_TO_REACH[Trouble.ADDRESS]
        )


def _supervise(
    address: str,
    home: "GridHome",
    start_it: "Callable[[Callable[[], None]], ControllerUp]",
    digest: str,
    show_it: "Callable[[ControllerUp], None]",
) -> None:
    from distributed_grid.cluster.supervise import ServiceManager, Supervisor

    def ready(found: "ControllerUp") -> None:
        if found.get("config_digest") != digest:
            say(
                f"Warning: the running controller uses a different configuration ({found.get('config_source')}). "
                "To apply this one: grid stop, then start again."
            )
        show_it(found)

    Supervisor(address, home, start_it, ServiceManager(os.environ), say=say, on_ready=ready).run()


@click.command(cls=Command, examples=["grid stop", "grid stop --wait 5m --force"])
@click.option("--force", is_flag=True, help="End work that still holds borrowed capacity.")
@click.option(
    "--wait", metavar=TIME, default="30s", show_default=True, help="Wait this long for capacity that is still in use."
)
@json_option
def stop(force: bool, wait: str, as_json: bool) -> None:
    """Return all capacity and remove grid from the cluster. The cluster itself keeps running."""
    from distributed_grid.client import GridClient
    from distributed_grid.cluster.supervise import end_supervisors
    from distributed_grid.errors import NoCluster
    from distributed_grid.model.validators import waiting_time

    client = GridClient(on_wait=say)
    try:
        stopped = client.stop_controller(force=force, wait_s=waiting_time(wait))
    except NoCluster:
        if end_supervisors(client.home):
            say("Stopped the supervisor that was waiting for the cluster to come back.")
        raise
    end_supervisors(client.home)
    client.home.controller.unlink(missing_ok=True)

    def text(answer: "Stopped") -> str:
        return f"grid was removed from the cluster; boosts returned: {answer['released']}"

    show(stopped, as_json, text)
