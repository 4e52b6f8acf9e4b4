"""`grid roles up|status|scale|down` on a real cluster: what Ray has then, and what is left."""

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import ray
from live_grid import ONE_LENDER, LiveGrid, until
from role_runs import a_run

from distributed_grid.execution.role_records import RoleRecords

pytestmark = pytest.mark.cluster
CONFIG = ONE_LENDER
SUPPORT = str(Path(__file__).parents[1] / "support")

OWNER = """
import sys, ray
from distributed_grid.execution.role_records import RoleRecords
sys.path.insert(0, {support!r})
from role_runs import a_run
ray.init(address={address!r}, log_to_driver=False, logging_level="ERROR")
job = ray.get_runtime_context().get_job_id()
print(RoleRecords.connected().claim(a_run("theirs", owner={{"node": "head", "pid": 1, "job_id": job}})), flush=True)
sys.stdin.read()
"""


def test_records_and_wishes_in_ray_itself(grid: LiveGrid) -> None:
    """Between processes: what an owner wrote is read, wishes reach it, and that it died is seen."""
    records = RoleRecords.connected()
    job = ray.get_runtime_context().get_job_id()
    mine = a_run("mine", owner={"node": "head", "pid": 1, "job_id": job})

    assert records.claim(mine) is None
    assert records.claim(mine) == mine
    assert records.names() == ["mine"]
    records.wish("mine", counts={"trainer": 1})
    records.wish("mine", counts={"rollout_worker": 3}, down=True)
    taken = RoleRecords.at(grid.address).take_wish("mine")
    assert taken is not None
    assert (taken["counts"], taken["down"]) == ({"trainer": 1, "rollout_worker": 3}, True)
    assert records.wished("mine") is None

    program = OWNER.format(support=SUPPORT, address=grid.address)
    owner = subprocess.Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE, env=grid.env)
    assert owner.stdout is not None and owner.stdin is not None
    assert owner.stdout.readline() == b"None\n"
    theirs = records.read_record("theirs")
    assert theirs is not None
    assert records.with_dead_owners([mine, theirs]) == frozenset()
    owner.kill()
    owner.wait()
    until(lambda: records.with_dead_owners([mine, theirs]) == {"theirs"}, 10, "its job is dead")
    assert records.remove_record("theirs")
    assert records.remove_record("mine")
    assert records.names() == []
