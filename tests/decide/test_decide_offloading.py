"""Which processes can move, which are worth it, where they would go, and what of them goes along."""

from dataclasses import replace
from typing import Any

import pytest
from builders import elsewhere, limits, node, process

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.offload.movable import (
    continues,
    kind_of_process,
    obstacles_here,
    obstacles_there,
    part_of,
    speakers,
)
from distributed_grid.decide.offload.recommend import (
    Stuck,
    ask_for,
    confidence,
    cpu_needed,
    find_place,
    is_heavy,
    memory_needed,
    recommend,
    recommendation_of,
)
from distributed_grid.decide.offload.secrets import ALLOWED, choose_environment, looks_secret, shown_command
from distributed_grid.errors import InvalidRequest
from distributed_grid.model.leases import Purpose
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.offload import (
    Ancestor,
    FileFacts,
    FileRole,
    ObstacleCode,
    ProcessFacts,
    ProcessKind,
    Stream,
    StreamKind,
)
from distributed_grid.model.resources import GB

INIT = Ancestor(1, "systemd", ("/sbin/init",), 0)
NOTHING, PIPE = Stream(), Stream(StreamKind.PIPE)


def codes(found: Any) -> list[ObstacleCode]:
    return [obstacle.code for obstacle in found]


# -- what keeps a process where it is -------------------------------------------------------------------------


def test_a_plain_program_can_move() -> None:
    assert obstacles_here(process()) == ()
    assert obstacles_there(process(), elsewhere(process())) == ()


@pytest.mark.parametrize(
    ("changes", "code", "reported"),
    [
        ({"ancestors": (Ancestor(9, "raylet", ("raylet",), 1000), INIT)}, ObstacleCode.RAYS_OWN, "belongs to Ray"),
        ({"name": "ray::train", "command": ("ray::train",)}, ObstacleCode.RAYS_OWN, "belongs to Ray"),
        ({"uses_ray": True}, ObstacleCode.RAY_DRIVER, "grid run"),
        ({"holds_ray": True}, ObstacleCode.RAYS_OWN, "it is the parent of Ray nodes"),
        ({"holds_ray": True, "command": ("python", "/x/bin/ray", "start")}, ObstacleCode.RAYS_OWN, "belongs to Ray"),
        ({"command": ("python3", "-m", "distributed_grid.cluster")}, ObstacleCode.GRIDS_OWN, "belongs to grid"),
        ({"service": "nginx.service"}, ObstacleCode.SERVICE, "nginx.service"),
        ({"name": "bash", "command": ("-bash",)}, ObstacleCode.LAUNCHER, "a shell"),
        ({"uid": 7, "user": "eve"}, ObstacleCode.OTHER_USER, "eve"),
        ({"ancestors": (Ancestor(9, "make", ("make",), 1000), INIT)}, ObstacleCode.PART_OF_ANOTHER, "process 9 (make)"),
        ({"command": ()}, ObstacleCode.NO_COMMAND, "no command line"),
        ({"can_be_started": False}, ObstacleCode.NO_COMMAND, "names no existing program"),
        ({"state": "Z"}, ObstacleCode.NOT_RUNNING, "has ended"),
        ({"state": "T"}, ObstacleCode.NOT_RUNNING, "is stopped"),
        ({"terminal": "/dev/pts/3"}, ObstacleCode.TERMINAL, "/dev/pts/3"),
        ({"streams": (PIPE, NOTHING, NOTHING)}, ObstacleCode.PIPE, "its input is a pipe"),
        ({"streams": (NOTHING, PIPE, NOTHING)}, ObstacleCode.PIPE, "its output is a pipe"),
        ({"listening": 1}, ObstacleCode.SOCKETS, "1 on which it listens"),
        ({"established": 2}, ObstacleCode.SOCKETS, "2 connected"),
    ],
)
def test_each_obstacle_is_reported_with_its_reason(changes: dict[str, Any], code: ObstacleCode, reported: str) -> None:
    found = obstacles_here(process(**changes))

    assert codes(found) == [code]
    assert reported in found[0].detail


def test_all_obstacles_are_told_not_only_the_first() -> None:
    stuck = process(terminal="/dev/pts/3", listening=1, state="T")

    assert codes(obstacles_here(stuck)) == [ObstacleCode.NOT_RUNNING, ObstacleCode.TERMINAL, ObstacleCode.SOCKETS]


# -- what keeps it from another node --------------------------------------------------------------------------


def having(file: FileFacts) -> ProcessFacts:
    return process(files=(*process().files, file))


def test_a_file_that_the_other_node_does_not_have_is_named() -> None:
    there = elsewhere(process())
    without = replace(there, files={path: found for path, found in there.files.items() if "train.py" not in path})

    (found,) = obstacles_there(process(), without)

    assert found.code is ObstacleCode.FILES_MISSING
    assert found.detail == "gpu1 does not have /home/ana/train.py (named by its command)"


@pytest.mark.parametrize(
    ("file", "changes", "goes"),
    [
        (FileFacts("/data", FileRole.READ, 10, 5, False), {}, True),
        (FileFacts("/data", FileRole.READ, 10, 5, False), {"inode": 9}, True),
        (FileFacts("/data", FileRole.READ, 10, 5, False), {"inode": 9, "size": 11}, False),
        (FileFacts("/out", FileRole.WRITTEN, 10, 5, True), {"size": 12}, True),
        (FileFacts("/out", FileRole.WRITTEN, 10, 5, True), {"inode": 9}, False),
        (FileFacts("/out", FileRole.WRITTEN, 10, 5, False), {}, False),
        (FileFacts("/out", FileRole.WRITTEN, 10, 5, True), {"may_write": False}, False),
        (FileFacts("/bin/x", FileRole.PROGRAM, 10, 5, False), {"size": 11, "inode": 9}, True),
        (FileFacts("/bin/x", FileRole.PROGRAM, 10, 5, False), {"may_execute": False}, False),
        (FileFacts("/w", FileRole.FOLDER, 0, 5, False), {"is_folder": False}, False),
    ],
)
def test_what_is_read_must_be_as_good_and_what_is_written_the_same(
    file: FileFacts, changes: dict[str, Any], goes: bool
) -> None:
    facts = having(file)
    there = elsewhere(facts)
    there = replace(there, files=dict(there.files) | {file.path: replace(there.files[file.path], **changes)})

    assert codes(obstacles_there(facts, there)) == ([] if goes else [ObstacleCode.FILES_DIFFER])


def test_nodes_on_one_machine_have_the_same_files() -> None:
    facts = having(FileFacts("/tmp/out", FileRole.WRITTEN, 10, 5, False))

    assert obstacles_there(facts, elsewhere(facts, machine=facts.machine)) == ()


def test_its_output_is_no_obstacle_and_goes_on_in_the_same_file_where_that_is_there() -> None:
    stream = Stream(StreamKind.FILE, "/home/ana/log")
    facts = replace(having(FileFacts("/home/ana/log", FileRole.OUTPUT, 10, 5, True)), streams=(NOTHING, stream, stream))
    there = elsewhere(facts)
    without = replace(there, files={path: found for path, found in there.files.items() if path != stream.path})

    assert obstacles_there(facts, without) == ()
    assert (continues(facts, stream, there), continues(facts, stream, without)) == (True, False)
    assert not continues(facts, NOTHING, there)


def test_a_node_that_works_as_another_user_cannot_take_it() -> None:
    (found,) = obstacles_there(process(), elsewhere(process(), user="ray", uid=999))

    assert found.code is ObstacleCode.NO_SUCH_USER
    assert "ray (999)" in found.detail


# -- what it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "command", "kind"),
    [
        ("python3.12", ("/opt/bin/python3.12", "x.py"), ProcessKind.PYTHON),
        ("train", ("python3", "x.py"), ProcessKind.PYTHON),
        ("bash", ("bash", "nightly.sh"), ProcessKind.SHELL),
        ("sh", ("sh", "-c", "a; b"), ProcessKind.SHELL),
        ("zsh", ("zsh", "-l"), ProcessKind.LAUNCHER),
        ("make", ("make", "-j8"), ProcessKind.BUILD),
        ("ffmpeg", ("ffmpeg", "-i", "a"), ProcessKind.OTHER),
        ("gcs_server", ("/x/ray/core/src/ray/gcs/gcs_server",), ProcessKind.RAY),
        ("python", ("python", "/x/bin/ray", "start"), ProcessKind.RAY),
        ("python", ("python", "/x/bin/grid", "top"), ProcessKind.GRID),
    ],
)
def test_kinds(name: str, command: tuple[str, ...], kind: ProcessKind) -> None:
    assert kind_of_process(process(name=name, command=command)) is kind


def test_what_a_program_started_is_part_of_it_and_what_a_person_started_is_not() -> None:
    script = Ancestor(50, "bash", ("bash", "nightly.sh"), 1000)
    typed = Ancestor(40, "bash", ("-bash",), 1000)
    pool = Ancestor(60, "python3", ("python3", "main.py"), 1000)

    assert part_of(process(ancestors=(typed, INIT))) is None
    assert part_of(process(ancestors=(pool, script, typed, INIT))) == script
    assert part_of(process(ancestors=(Ancestor(30, "cron", ("cron",), 0), INIT))) is None
    assert part_of(process(ancestors=())) is None


def test_on_one_machine_what_runs_beside_ray_is_the_heads() -> None:
    shared = {"host": "one", "ip": "10.0.0.1"}
    nodes = NodeTable(
        [node("b", **shared), node("head", is_head=True, **shared), node("far", host="two"), node("down", alive=False)]
    )

    assert speakers(nodes) == {"head", "far"}


# -- what it needs, and where it goes -------------------------------------------------------------------------


@pytest.mark.parametrize(("cores", "needs"), [(0.0, 1), (0.9, 1), (1.04, 1), (1.2, 2), (7.6, 8)])
def test_cores_are_rounded_up(cores: float, needs: float) -> None:
    assert cpu_needed(process(cpu=cores)) == needs


def test_a_starved_process_is_as_heavy_as_what_it_would_use() -> None:
    starved = process(cpu=0.1, cpu_wanted=1.0, memory=0)

    assert is_heavy(starved) and not is_heavy(process(cpu=0.1, memory=0))
    assert cpu_needed(starved) == 1.0
    assert "0.1 cores (and waits for 0.9 more: its machine is busy)" in confidence(starved)[1]


def test_memory_has_some_room_to_grow() -> None:
    assert memory_needed(process(memory=1)) == GB // 4
    assert memory_needed(process(memory=GB)) == GB * 5 // 4


def test_confidence_falls_with_what_may_be_lost_and_says_so() -> None:
    sure, _ = confidence(process())
    old, why_old = confidence(process(age_s=7200.0))
    young, why_young = confidence(process(age_s=5.0))

    assert max(old, young) < sure
    assert "unsaved work would be lost" in why_old
    assert "may finish soon" in why_young


def place(facts: ProcessFacts, *nodes: Any, to: str | None = None, **there: Any) -> Any:
    table = NodeTable([node(facts.node), *nodes])
    answers = {one.name: there.get(one.name, elsewhere(facts, one.name)) for one in nodes}
    wanted = replace(recommendation_of(facts), destination=to)
    return find_place(wanted, facts, table, {k: v for k, v in answers.items() if v is not None}, Usage.of(()))


def test_it_goes_where_there_is_most_room() -> None:
    found = place(process(), node("gpu1", cpus=4), node("gpu2", cpus=8))

    assert (found.destination, found.target_node, found.cpu) == ("gpu2", "gpu-master", 2)


def test_it_goes_where_its_files_are_though_others_have_more_room() -> None:
    empty = replace(elsewhere(process(), "gpu2"), files={})

    assert place(process(), node("gpu1"), node("gpu2", cpus=8), gpu2=empty).destination == "gpu1"


def test_it_goes_where_it_is_told_or_learns_why_not() -> None:
    assert place(process(), node("gpu1"), node("gpu2", cpus=8), to="gpu1").destination == "gpu1"

    refused = place(process(cpu=5), node("gpu1"), node("gpu2", cpus=8), to="gpu1")
    assert isinstance(refused, Stuck)
    assert [obstacle.detail for obstacle in refused.obstacles] == ["gpu1: 4 of 4 CPUs free, 5 requested"]


def test_no_node_has_what_it_needs() -> None:
    refused = place(process(gpus=1), node("gpu1"), node("gpu2", limits=limits(can_share=False)))

    assert set(codes(refused.obstacles)) == {ObstacleCode.NO_CAPACITY}
    assert len(refused.obstacles) == 2


def test_a_node_that_did_not_answer_gets_nothing() -> None:
    refused = place(process(), node("gpu1"), gpu1=None)

    assert [obstacle.detail for obstacle in refused.obstacles] == ["gpu1: it did not answer"]


def test_alone_there_is_nowhere_to_go() -> None:
    assert "no other node" in place(process()).obstacles[0].detail


def test_the_lease_is_for_one_task_and_says_what_runs_in_it_without_secrets() -> None:
    wanted = recommendation_of(process(gpus=1, command=("python", "x.py", "--token", "s3cret")))
    ask = ask_for(replace(wanted, destination="gpu1"))

    assert (ask.target, ask.source, ask.purpose, ask.delivery) == ("gpu-master", "gpu1", Purpose.TASK, "reserve")
    assert ask.along == (("gpu", 10_000), ("memory", GB * 5 // 4))
    assert ask.label == "python x.py --token ***"


def test_the_surest_and_heaviest_comes_first_and_parts_and_light_ones_are_not_told() -> None:
    heavy, sure = process(10, cpu=3, name="ffmpeg", command=("ffmpeg",)), process(2)
    light, part = process(3, cpu=0.1, memory=0), process(4, ancestors=(Ancestor(2, "python3", ("x",), 1000),))
    stuck = process(5, listening=1)
    nodes = NodeTable([node("gpu-master"), node("gpu1")])

    movable, cannot = recommend([heavy, sure, light, part, stuck], nodes, {"gpu1": elsewhere(sure)}, Usage.of(()))

    assert [one.process.pid for one in movable if one.process] == [2, 10]
    assert [(one.process.pid, codes(one.obstacles)) for one in cannot] == [(5, [ObstacleCode.SOCKETS])]


# -- what goes along ------------------------------------------------------------------------------------------


def test_the_allow_list_has_nothing_that_looks_like_a_secret() -> None:
    assert [name for name in ALLOWED if looks_secret(name)] == []


@pytest.mark.parametrize(
    "name",
    ["WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "PGPASSWD", "GITHUB_PAT", "LC_MY_TOKEN"],
)
def test_a_secret_is_copied_only_if_it_is_named(name: str) -> None:
    has = ["PATH", "LC_ALL", "OMP_NUM_THREADS", "MY_SETTING", name]

    unasked, asked = choose_environment(has), choose_environment(has, [name])

    assert unasked.copied == ("LC_ALL", "OMP_NUM_THREADS", "PATH")
    assert set(unasked.left_behind) == {"MY_SETTING", name}
    assert name in asked.copied


def test_a_value_may_be_given() -> None:
    chosen = choose_environment(["PATH", "A"], ["PATH=/bin", "B=x=y"])

    assert (chosen.copied, chosen.given, chosen.left_behind) == ((), {"PATH": "/bin", "B": "x=y"}, ("A",))


@pytest.mark.parametrize("named", ["NOT_THERE", "1A=x", "=x", "A-B"])
def test_what_cannot_be_copied_is_refused(named: str) -> None:
    with pytest.raises(InvalidRequest):
        choose_environment(["PATH"], [named])


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("x --token abc y", "x --token *** y"),
        ("x --api-key=abc", "x --api-key=***"),
        ("env DB_PASSWORD=abc x", "env DB_PASSWORD=*** x"),
        ("x https://me:abc@host/path", "x https://***@host/path"),
        ("x --lr 0.1 --epochs=3", "x --lr 0.1 --epochs=3"),
        ("x --password --verbose", "x --password --verbose"),
    ],
)
def test_a_command_line_is_shown_without_secrets(command: str, shown: str) -> None:
    assert " ".join(shown_command(command.split())) == shown
