"""Any workload, and any nodes to plan it on."""

from builders import amounts, place, workload
from hypothesis import strategies as st

from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.roles.plan import InventoryNode
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload

LABELS = st.sampled_from([{}, {"zone": "1"}, {"zone": "2"}])
SELECTORS = st.sampled_from([(), (), (), ("n0",), ("n0", "n1"), ("zone=1",), ("zone=1", "zone=2")])


@st.composite
def nodes(draw: st.DrawFn, *, usable: bool = False) -> list[InventoryNode]:
    found = []
    for number in range(draw(st.integers(1, 5))):
        has = {"cpus": draw(st.integers(0, 12)), "gpus": draw(st.sampled_from([0, 0, 1, 2, 4])), "memory": 16}
        busy = ResourceVector({"gpu": draw(st.sampled_from([0, 0, 0, 2500, 5000]))}) if has["gpus"] else None
        found.append(
            place(
                f"n{number}",
                **has,
                disk=draw(st.sampled_from([0, 0, 1])),
                used=busy,
                gpu_parts=draw(st.sampled_from([(), (), (0.25,), (0.6, 0.6)])) if has["gpus"] > 1 else (),
                labels=draw(LABELS),
                closed="" if usable else draw(st.sampled_from(["", "", "", "", "it is down"])),
                lends=amounts(cpu=draw(st.integers(0, has["cpus"]))),
            )
        )
    return found


@st.composite
def workloads(draw: st.DrawFn, *, most_roles: int = 4) -> Workload:
    pools = tuple(
        Pool(f"p{number}", num_cpus=draw(st.integers(0, 20)), nodes=draw(SELECTORS))
        for number in range(draw(st.integers(0, 2)))
    )
    groups = {
        name: (draw(st.sampled_from(["process", "bundle"])), draw(counts()), draw(pool_of(pools)))
        for name in ("g", "h")
    }
    roles = []
    for number in range(draw(st.integers(1, most_roles))):
        group = draw(st.sampled_from([None, None, "g", "h"]))
        kind, count, pool = groups[group] if group else ("process", draw(counts()), draw(pool_of(pools)))
        roles.append(
            RoleSpec(
                f"r{number}",
                count=count,
                cpus=draw(st.sampled_from([0, 0.5, 1, 1, 2, 3, 4])),
                gpus=draw(st.sampled_from([0, 0, 0, 0.25, 0.5, 0.6, 1, 2])),
                memory_gb=draw(st.sampled_from([0, 0, 0.3, 4])),
                resources=draw(st.sampled_from([{}, {}, {}, {"disk": 1}])),
                pool=pool,
                colocation_group=group,
                colocation=kind,
                placement=draw(st.sampled_from(["pack", "spread"])),
                node_affinity=draw(SELECTORS),
                node_anti_affinity=draw(st.sampled_from([(), (), ("n0",), ("zone=2",)])),
            )
        )
    return workload(*roles, pools=pools)


def counts() -> st.SearchStrategy[int | tuple[int, int]]:
    return st.one_of(st.integers(1, 6), st.tuples(st.integers(0, 3), st.integers(3, 9)))


def pool_of(pools: tuple[Pool, ...]) -> st.SearchStrategy[str | None]:
    return st.sampled_from([None, *(pool.name for pool in pools)])
