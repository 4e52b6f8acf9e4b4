"""Nothing that has an obstacle is ever recommended, and no secret goes along unasked."""

from dataclasses import replace
from typing import Any

from builders import elsewhere, node, process
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.offload.movable import obstacles_here, obstacles_there
from distributed_grid.decide.offload.recommend import recommend
from distributed_grid.decide.offload.secrets import choose_environment, looks_secret
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.offload import Ancestor, FileFacts, FileRole, ProcessFacts, Stream, StreamKind

NAMES = ("gpu-master", "gpu1", "gpu2")
often = st.sampled_from


@st.composite
def processes(draw: Any) -> ProcessFacts:
    streams = st.builds(Stream, often([StreamKind.NOTHING, StreamKind.NOTHING, *StreamKind]))
    others = [Ancestor(9, "raylet", (), 1000), Ancestor(9, "bash", ("-bash",), 1000), Ancestor(9, "make", ("a",), 1000)]
    parent = often([Ancestor(1, "init", (), 0), *others])
    files = st.builds(
        FileFacts, often(["/a", "/b", "/c"]), often([*FileRole]), often([0, 5]), often([1, 2]), st.booleans()
    )
    return process(
        draw(st.integers(2, 999)),
        name=draw(often(["python3", "bash", "ffmpeg", "make", "gcs_server"])),
        command=draw(often([("python3", "x.py"), ("-bash",), (), ("ray::f",), ("ffmpeg", "a")])),
        uid=draw(often([1000, 1000, 7])),
        cpu=draw(st.floats(0, 9)),
        gpus=draw(often([0, 0, 1])),
        state=draw(often("RSSSTZ")),
        can_be_started=draw(often([True, True, False])),
        terminal=draw(often([None, None, "/dev/pts/1"])),
        streams=(draw(streams), draw(streams), draw(streams)),
        listening=draw(often([0, 0, 1])),
        established=draw(often([0, 0, 1])),
        files=tuple(draw(st.lists(files, max_size=3, unique_by=lambda file: file.path))),
        ancestors=(draw(parent), Ancestor(1, "init", (), 0)),
        uses_ray=draw(often([False, False, True])),
        service=draw(often([None, None, "x.service"])),
    )


@given(st.lists(processes(), max_size=8, unique_by=lambda one: one.pid), st.data())
def test_what_is_recommended_has_no_obstacle_and_a_place(found: list[ProcessFacts], data: Any) -> None:
    nodes = NodeTable(node(name, cpus=data.draw(st.integers(1, 8)), gpus=1) for name in NAMES)
    answering = data.draw(st.sets(often(NAMES[1:])))
    there = (
        {
            name: replace(elsewhere(process(files=one.files), name), files=dict(list(elsewhere(one).files.items())[:n]))
            for name in answering
            for one, n in [(data.draw(often(found)), data.draw(st.integers(0, 3)))]
            if found
        }
        if found
        else {}
    )

    movable, stuck = recommend(found, nodes, there, Usage.of(()))

    for one in movable:
        assert one.process is not None and one.destination is not None
        assert obstacles_here(one.process) == ()
        assert obstacles_there(one.process, there[one.destination]) == ()
        assert nodes[one.destination].free.covers(nodes[one.destination].free.of(cpu=one.cpu, gpu=one.gpu))
        assert 0 < one.confidence <= 1
        assert one.reason
    assert all(one.obstacles for one in stuck)
    reported = [one.process.pid for one in movable if one.process] + [one.process.pid for one in stuck]
    assert len(reported) == len(set(reported))


@given(st.lists(st.from_regex(r"[A-Z]{1,4}(_(TOKEN|KEY|SECRET|PATH|PASSWORD|THREADS))?", fullmatch=True)), st.data())
def test_no_secret_is_copied_that_was_not_named(has: list[str], data: Any) -> None:
    named = data.draw(st.lists(often(has))) if has else []

    chosen = choose_environment(has, named)

    assert [name for name in chosen.copied if looks_secret(name) and name not in named] == []
    assert {*chosen.copied, *chosen.left_behind} == {*has}
