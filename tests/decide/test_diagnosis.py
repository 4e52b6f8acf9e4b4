"""What each check says of which facts. No cluster, no files: facts in, findings out."""

from dataclasses import replace
from typing import Any

import pytest

from distributed_grid.decide.diagnosis import diagnose
from distributed_grid.decide.diagnosis.home import is_shared
from distributed_grid.model.checkup_facts import (
    REPORT_PERIOD,
    ActorState,
    AutoscalerFacts,
    ClusterFacts,
    ControllerFacts,
    Facts,
    GroupFacts,
    HomeFacts,
    KeptFile,
    MachineFacts,
    NodeFacts,
    ResizeFacts,
    SecretFile,
    SecretKind,
    Trouble,
    Unreached,
)
from distributed_grid.model.findings import Finding, Severity

ADDRESS = "10.0.0.1:6379"
URL = "http://127.0.0.1:4000"
GB = 2**30
MIRRORED = "node_" + "0123456789abcdef" * 3 + "01234567"

MACHINE = MachineFacts("3.11.7", "/usr/bin/python3", "2.60.0")
TOKEN = SecretFile("token", SecretKind.OWN_TOKEN, 0o600, "ann")
TOKENS = SecretFile("tokens.json", SecretKind.USERS_TOKENS, 0o600, "ann")
LOGIN = SecretFile("login.json", SecretKind.LOGIN, 0o600, "ann")
KEY = SecretFile("head key.pem", SecretKind.TLS_KEY, 0o600, "ann")
OF_LAB = KeptFile("resource_boosts.json.of-lab", 7200, cluster="lab", boosts=2)
DAMAGED = KeptFile("tokens.json.broken-20250601T120000Z", 864000, kept_from="tokens.json")
HOME = HomeFacts(
    "/home/ann/.distributed_grid",
    exists=True,
    filesystem="ext4",
    mount_point="/home",
    free_bytes=9 * GB,
    owner="ann",
    secrets=(TOKEN,),
)
CONTROLLER = ControllerFacts(
    recorded=True, url=URL, ray_address=ADDRESS, actor=ActorState.THERE, actor_url=URL, in_use=()
)
HEAD = NodeFacts(
    "gpu-master",
    is_head=True,
    answered=True,
    python="3.11.7",
    ray="2.60.0",
    home="/home/ann",
    clock_offset_s=0.001,
    round_trip_s=0.01,
    env={},
    token_auth=True,
)
WORKER = replace(HEAD, name="gpu1", is_head=False)
FAST = replace(HEAD, env={REPORT_PERIOD: "10"})
CLUSTER = ClusterFacts(
    ADDRESS,
    "controller.json",
    patience_s=20,
    nodes=(HEAD, WORKER),
    resize=ResizeFacts(1.0, 0.0, lags_s=(0.05, 0.07, 0.9)),
    group=GroupFacts("gpu1", "0.01 CPU", "gpu1"),
    head_labels={"ray.io/node-id": "ab", "grid/name": "gpu-master"},
    autoscaler=AutoscalerFacts(node_types=(MIRRORED,)),
)
HEALTHY = Facts(MACHINE, HOME, CONTROLLER, CLUSTER)


def named(finding: Finding) -> str:
    """The code, and for a node its name."""
    return f"{finding.code} {finding.subject}".strip()


def check(name: str, facts: Facts) -> Finding:
    (found,) = [finding for finding in diagnose(facts) if named(finding) == name]
    return found


def machine(**changes: Any) -> Facts:
    return replace(HEALTHY, machine=replace(MACHINE, **changes))


def home(**changes: Any) -> Facts:
    return replace(HEALTHY, home=replace(HOME, **changes))


def controller(**changes: Any) -> Facts:
    return replace(HEALTHY, controller=replace(CONTROLLER, **changes))


def cluster(**changes: Any) -> Facts:
    return replace(HEALTHY, cluster=replace(CLUSTER, **changes))


def head(**changes: Any) -> Facts:
    return cluster(nodes=(replace(HEAD, **changes), WORKER))


def unreached(trouble: Trouble, why: str) -> Facts:
    return cluster(unreached=Unreached(trouble, why))


def worker(**changes: Any) -> Facts:
    return cluster(nodes=(HEAD, replace(WORKER, **changes)))


GONE = ClusterFacts(ADDRESS, "controller.json", Unreached(Trouble.NOTHING_THERE, "nothing listens there"))
NO_CLUSTER = Facts(MACHINE, HOME, ControllerFacts(), None)

TABLE = [
    # check, facts, status, what the detail says, what the to-do says
    ("python", HEALTHY, "ok", "3.11.7 (/usr/bin/python3)", ""),
    ("python", machine(python="3.10.14"), "fail", "3.10.14", "Install Python 3.11"),
    ("ray", HEALTHY, "ok", "Ray 2.60.0", ""),
    ("ray", machine(ray="2.55.0"), "ok", "2.55.0", ""),
    ("ray", machine(ray="3.0.0.dev0"), "ok", "3.0.0.dev0", ""),
    ("ray", machine(ray="2.54.1"), "fail", "Ray 2.54.1 is too old: grid needs 2.55", "/usr/bin/python3 -m pip install"),
    ("ray", machine(ray="2.9.0"), "fail", "2.9.0 is too old", "restart the cluster"),
    ("ray", machine(ray=None, ray_error="No module named 'ray'"), "fail", "No module named 'ray'", "pip install"),
    ("home", HEALTHY, "ok", "/home/ann/.distributed_grid is writable, mode 0700", ""),
    ("home", home(exists=False), "ok", "can be created", ""),
    ("home", home(mode=0o755), "warn", "mode 0755: other users can read", "chmod 700 /home/ann/.distributed_grid"),
    ("home", home(mode=0o770), "fail", "mode 0770: other users can change", "chmod 700"),
    ("home", home(error="it cannot be written: Read-only file system"), "fail", "Read-only", "Set GRID_HOME"),
    ("home", home(damaged=("cluster.json cannot be read: x",)), "fail", "cluster.json", "remove the damaged file"),
    ("home_filesystem", HEALTHY, "ok", "ext4 at /home is local", ""),
    ("home_filesystem", home(filesystem="nfs4"), "warn", "nfs4 at /home is shared", "local disk of the head"),
    ("home_filesystem", home(filesystem="fuse.sshfs"), "warn", "fsync", "Set GRID_HOME"),
    ("home_filesystem", home(filesystem=""), "skip", "unknown", ""),
    ("secrets", HEALTHY, "ok", "only ann can read them: token (0600)", ""),
    ("secrets", home(secrets=(replace(TOKEN, mode=0o400), KEY)), "ok", "token (0400), head key.pem (0600)", ""),
    ("secrets", home(secrets=(replace(TOKEN, mode=0o640), LOGIN)), "fail",
     "token has mode 0640: anyone who reads it can do everything that grid can",
     "chmod 600 /home/ann/.distributed_grid/token   (if others can log in here, they may know them: token: remove it"),
    ("secrets", home(secrets=(TOKEN, replace(TOKENS, mode=0o604))), "fail", "tokens.json has mode 0604",
     "chmod 600 /home/ann/.distributed_grid/tokens.json"),
    ("secrets", home(secrets=(replace(LOGIN, mode=0o620),)), "fail", "mode 0620", "grid token revoke ID"),
    ("secrets", home(secrets=(replace(KEY, mode=0o644),)), "fail", "can impersonate the controller",
     "chmod 600 '/home/ann/.distributed_grid/head key.pem'"),
    ("secrets", home(secrets=(replace(TOKEN, owner="root"), TOKENS)), "fail",
     "token belongs to root, and /home/ann/.distributed_grid to ann",
     "sudo chown ann /home/ann/.distributed_grid/token"),
    ("secrets", home(secrets=(replace(TOKEN, owner="root", mode=0o644),)), "fail", "belongs to root",
     "sudo chown ann /home/ann/.distributed_grid/token && chmod 600 /home/ann/.distributed_grid/token"),
    ("secrets", home(secrets=()), "skip", "at its first start", ""),
    ("kept_aside", HEALTHY, "ok", "nothing", ""),
    ("kept_aside", home(kept=(OF_LAB,)), "warn",
     "resource_boosts.json.of-lab, 2.0 h old: 2 unexpired boosts of the cluster 'lab', not applied here",
     "start it with --adopt; to forget them: rm -f /home/ann/.distributed_grid/resource_boosts.json.of-lab "
     "/home/ann/.distributed_grid/resource_boosts.json.of-lab.previous"),
    ("kept_aside", home(kept=(replace(OF_LAB, boosts=1),)), "warn", "1 unexpired boost of", "--adopt"),
    ("kept_aside", home(kept=(replace(OF_LAB, boosts=0),)), "warn", "cluster 'lab', all over", "rm -f /home/ann"),
    ("kept_aside", home(kept=(DAMAGED,)), "warn",
     "tokens.json.broken-20250601T120000Z, 10.0 days old: a damaged or foreign tokens.json",
     "rm -f /home/ann/.distributed_grid/tokens.json.broken-20250601T120000Z"),
    ("kept_aside", home(kept=(OF_LAB, DAMAGED)), "warn", "of-lab, 2.0 h old", "tokens.json.broken-20250601T120000Z"),
    ("disk_space", HEALTHY, "ok", "9.0 GB free", ""),
    ("disk_space", home(free_bytes=GB // 2), "warn", "0.5 GB free", "Make room on /home"),
    ("disk_space", home(free_bytes=0), "fail", "0.0 GB free", "Make room on /home"),
    ("disk_space", home(free_bytes=None), "skip", "unknown", ""),
    ("controller", HEALTHY, "ok", f"{URL} answers, accepts the token, and is in the Ray cluster", ""),
    ("controller", NO_CLUSTER, "skip", "no controller", "grid cluster start"),
    ("controller", replace(HEALTHY, controller=ControllerFacts(actor=ActorState.ABSENT)), "skip",
     f"not in the Ray cluster at {ADDRESS}", f"grid start --address {ADDRESS}"),
    ("controller", replace(HEALTHY, controller=ControllerFacts(actor=ActorState.THERE, actor_url=URL)), "warn",
     f"at {URL}, but was not started from this GRID_HOME", "Set GRID_HOME"),
    ("controller", controller(record_error="Expecting value"), "fail", "Expecting value", "Remove controller.json"),
    ("controller", controller(health_error="refused"), "fail", f"{URL} does not answer: refused",
     f"grid start --address {ADDRESS}"),
    ("controller", replace(controller(health_error="refused"), cluster=GONE), "fail",
     f"its Ray cluster at {ADDRESS} is gone too", "grid cluster start"),
    ("controller", controller(token_error="it answered 401"), "fail", "it answered 401", "same GRID_HOME"),
    ("controller", controller(actor=ActorState.ABSENT), "fail", f"{ADDRESS} has no controller", "grid stop"),
    ("controller", controller(actor=ActorState.SILENT), "fail", "actor in the Ray cluster", "grid stop"),
    ("controller", controller(actor_url="http://127.0.0.1:5"), "fail", "another one, at http://127.0.0.1:5",
     "grid stop"),
    ("controller", controller(ray_address="10.9.9.9:1", actor=ActorState.ABSENT), "warn", "10.9.9.9:1", "--address"),
    ("controller", controller(actor=ActorState.UNASKED), "warn", "could not be asked", ""),
    ("ray_cluster", HEALTHY, "ok", f"{ADDRESS} (from controller.json) answers, with 2 live nodes", ""),
    ("ray_cluster", NO_CLUSTER, "skip", "no RAY_ADDRESS", "grid cluster start"),
    ("ray_cluster", replace(HEALTHY, cluster=GONE), "fail", "nothing listens there", "grid cluster start"),
    ("ray_cluster", unreached(Trouble.TOKEN, "it asks for a token"), "fail", "token",
     "RAY_AUTH_MODE=token"),
    ("ray_cluster", unreached(Trouble.VERSIONS, "Version mismatch"), "fail", "mismatch",
     "the Python and Ray of the cluster"),
    ("ray_cluster", unreached(Trouble.SILENT, "no answer in 5 s"), "fail", "5 s", "gcs_server.out"),
    ("ray_cluster", unreached(Trouble.NOT_RAY, "not like a Ray head"), "fail", "Ray head",
     "ray start --port"),
    ("ray_cluster", unreached(Trouble.ADDRESS, "that is not HOST:PORT"), "fail", "HOST:PORT", "6379"),
    ("ray_cluster", unreached(Trouble.OTHER, "odd"), "fail", "odd", "on a machine of that cluster"),
    ("ray_cluster", cluster(stuck_at="making a placement group"), "fail", "hung at: making a placement group", "logs"),
    (
        "ray_cluster",
        cluster(missing=("gpu2",)),
        "warn",
        "gpu2 is configured but not in the cluster",
        "--labels grid/name=NAME",
    ),
    ("ray_cluster", cluster(errors={"ray_cluster": "boom"}), "fail", "boom", "Retry"),
    ("ray_cluster", machine(ray="2.9.0"), "skip", "without a suitable Ray", ""),
    ("nodes gpu1", HEALTHY, "ok", "Python 3.11.7; Ray 2.60.0; clock +0.000 s from the head's (±0.010 s)", ""),
    ("nodes gpu-master", HEALTHY, "ok", "home /home/ann is writable", ""),
    ("nodes gpu1", worker(python="3.12.1"), "fail", "Python 3.12.1, and 3.11.7 on the head",
     "Install Python 3.11.7 on gpu1"),
    ("nodes gpu1", worker(python="3.11.9"), "warn", "Python 3.11.9, and 3.11.7", "Install Python 3.11.7 on gpu1"),
    ("nodes gpu1", worker(ray="2.59.0"), "fail", "Ray 2.59.0, and 2.60.0",
     "On gpu1: pip install 'ray[default]==2.60.0'"),
    ("nodes gpu1", worker(clock_offset_s=1.5), "warn", "clock +1.499 s", "timedatectl"),
    ("nodes gpu1", worker(clock_offset_s=-11), "fail", "clock -11.001 s", "On gpu1: timedatectl set-ntp true"),
    ("nodes gpu1", worker(clock_offset_s=1.5, round_trip_s=2.0), "ok", "±1.005 s", ""),
    ("nodes gpu1", worker(clock_offset_s=None), "skip", "clock not measured", ""),
    ("nodes gpu1", worker(home="/nobody", home_writable=False), "warn", "home /nobody is not writable", "On gpu1"),
    ("nodes gpu1", worker(answered=False), "fail", "gpu1 is in the cluster, but did not run a test task within 20 s",
     "On gpu1"),
    ("nodes", cluster(nodes=None, errors={"nodes": "boom"}), "fail", "boom", "Retry"),
    ("resize", HEALTHY, "ok", "was set to 1 and back to 0", ""),
    ("resize", cluster(resize=ResizeFacts(error="no such call")), "fail", "no such call", "Install Ray 2.55"),
    ("resize", cluster(resize=ResizeFacts(1.0, 1.0)), "fail", "but went to 1.0 and 1.0", "delivery: reserve"),
    ("resize", cluster(resize=None), "skip", "not checked", ""),
    (
        "reservations",
        HEALTHY,
        "ok",
        "a placement group of 0.01 CPU, pinned to gpu1 by label, was created there and removed",
        "",
    ),
    ("reservations", cluster(group=GroupFacts()), "skip", "no node has 0.01 CPU", "Try again"),
    ("reservations", cluster(group=GroupFacts("gpu1", "1 memory", error="not ready")), "fail", "1 memory",
     "gcs_server.out"),
    ("reservations", cluster(group=GroupFacts("gpu1", "1 memory", "gpu2")), "fail", "landed on gpu2",
     "one Ray version"),
    ("reservations", cluster(group=None, errors={"reservations": "boom"}), "fail", "boom", "Retry"),
    ("authentication", HEALTHY, "ok", "RAY_AUTH_MODE=token", ""),
    ("authentication", head(token_auth=False), "warn", "anyone who reaches the Ray ports of 10.0.0.1",
     "ray get-auth-token --generate"),
    ("authentication", cluster(nodes=(replace(HEAD, token_auth=False),), address="127.0.0.1:1"), "warn",
     "every user of this machine", "RAY_AUTH_MODE=token"),
    ("authentication", head(token_auth=None), "skip", "not checked", ""),
    ("autoscaler", HEALTHY, "ok", "no Ray autoscaler", ""),
    ("autoscaler", cluster(autoscaler=AutoscalerFacts(reports_state=True)), "ok", "no Ray autoscaler", ""),
    ("autoscaler", cluster(autoscaler=AutoscalerFacts(instance_types=("small",))), "ok", "no Ray autoscaler", ""),
    ("autoscaler", cluster(autoscaler=AutoscalerFacts((MIRRORED, "ray.head.default"))), "fail",
     "active (ray.head.default)", "delivery: reserve"),
    ("autoscaler", cluster(autoscaler=AutoscalerFacts((), ("small",), reports_state=True)), "fail", "active (small)",
     "reservations work"),
    ("autoscaler", cluster(autoscaler=AutoscalerFacts(has_config=True)), "fail", "is active", "reserve"),
    ("kuberay", HEALTHY, "ok", "not run by KubeRay", ""),
    ("kuberay", head(env={"KUBERNETES_SERVICE_HOST": "10.0.0.9"}), "ok", "not run by KubeRay", ""),
    ("kuberay", head(env={"KUBERNETES_SERVICE_HOST": "10.0.0.9", "RAY_CLUSTER_NAME": "lab"}), "fail",
     "RAY_CLUSTER_NAME=lab): its in-place pod resizing uses the same call", "delivery: reserve"),
    ("kuberay", cluster(nodes=None, head_labels={"ray.io/group": "headgroup"}), "fail", "ray.io/group", "reserve"),
    ("kuberay", head(env=None), "skip", "not checked", ""),
    ("view_lag", HEALTHY, "ok",
     f"70 ms (median of 3); nodes report every 100 ms; grants are faster with {REPORT_PERIOD}",
     ""),
    ("view_lag", cluster(nodes=(FAST,)), "ok", "nodes report every 10 ms", ""),
    ("view_lag", cluster(nodes=(FAST, WORKER)), "ok", "gpu1 report every 100 ms", ""),
    ("view_lag", cluster(resize=ResizeFacts(1.0, 0.0, lags_s=(0.4, 0.5, 0.6))), "warn", "500 ms",
     f"{REPORT_PERIOD}=10"),
    ("view_lag", cluster(resize=ResizeFacts(1.0, 0.0, unseen=True)), "warn", "did not show", "CPU time"),
    ("view_lag", cluster(resize=ResizeFacts(error="no such call")), "skip", "nothing was resized", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "facts", "status", "detail", "what_to_do"),
    TABLE,
    ids=[f"{row[0]}-{row[2]}-{row[3][:24]}" for row in TABLE],
)
def test_a_check_says_what_it_saw_and_what_to_do(
    name: str, facts: Facts, status: str, detail: str, what_to_do: str
) -> None:
    found = check(name, facts)

    assert found.severity == status
    assert detail in found.detail
    assert what_to_do in found.what_to_do


def test_what_is_in_use_beside_ray_is_reported() -> None:
    used = "gpu1: GPU 0 is in use outside Ray: 100.0 of 140.0 GB"
    found = check("measured_use", replace(HEALTHY, controller=replace(CONTROLLER, in_use=(used,))))
    unasked = check("measured_use", replace(HEALTHY, controller=replace(CONTROLLER, in_use=None)))

    assert (found.severity, found.detail) == (Severity.WARN, used)
    assert unasked.severity is Severity.SKIP


def test_a_gpu_that_two_nodes_of_one_machine_hand_out_is_reported() -> None:
    def nodes(*, devices: int, visible: tuple[str, ...] = (), machines: tuple[str, str] = ("m", "m")) -> Facts:
        found = [
            replace(
                one, gpus=1, gpu_devices=devices, machine=machine, env={"CUDA_VISIBLE_DEVICES": seen} if seen else {}
            )
            for one, machine, seen in zip((HEAD, WORKER), machines, visible or ("", ""), strict=True)
        ]
        return cluster(nodes=tuple(found))

    both = check("gpus", nodes(devices=1))
    assert both.severity is Severity.WARN
    assert f"{HEAD.name} and {WORKER.name} hand out the same GPU, device 0" in both.detail
    assert "CUDA_VISIBLE_DEVICES" in both.what_to_do
    assert check("gpus", nodes(devices=2, visible=("0", "1"))).severity is Severity.OK
    assert check("gpus", nodes(devices=1, machines=("m", "n"))).severity is Severity.OK
    assert "test cluster" in check("gpus", nodes(devices=0)).detail


def test_everything_is_ok_where_nothing_is_wrong() -> None:
    assert {finding.severity for finding in diagnose(HEALTHY)} == {Severity.OK}


@pytest.mark.parametrize("row", TABLE, ids=[f"{row[0]}-{row[2]}-{row[3][:24]}" for row in TABLE])
def test_what_fails_always_says_what_to_do_and_what_is_ok_never_does(row: tuple[str, Facts, str, str, str]) -> None:
    for finding in diagnose(row[1]):
        assert finding.detail
        if finding.severity is Severity.FAIL:
            assert finding.what_to_do
        if finding.severity is Severity.OK:
            assert not finding.what_to_do


def test_every_check_is_named_once_with_and_without_a_cluster() -> None:
    with_one = [named(finding) for finding in diagnose(HEALTHY)]
    without = [named(finding) for finding in diagnose(NO_CLUSTER)]

    assert len(set(with_one)) == len(with_one)
    assert [name for name in with_one if not name.startswith("nodes ")] == [name for name in without if name != "nodes"]


def test_without_a_cluster_nothing_fails() -> None:
    found = diagnose(NO_CLUSTER)

    assert Severity.FAIL not in {finding.severity for finding in found}
    assert [named(f) for f in found if f.severity is Severity.SKIP][-8:] == [
        "nodes", "gpus", "resize", "reservations", "authentication", "autoscaler", "kuberay", "view_lag",
    ]  # fmt: skip


def test_without_a_suitable_ray_the_cluster_is_left_alone_and_says_so() -> None:
    found = diagnose(replace(machine(ray=None, ray_error="No module named 'ray'"), cluster=GONE))

    assert [named(finding) for finding in found if finding.severity is Severity.FAIL] == ["ray"]


def test_a_node_is_compared_with_this_machine_where_the_head_is_silent() -> None:
    facts = cluster(nodes=(replace(HEAD, answered=False), replace(WORKER, python="3.12.0", clock_offset_s=3.0)))

    found = check("nodes gpu1", facts)

    assert found.severity is Severity.FAIL
    assert "and 3.11.7 on the head" in found.detail
    assert "from this machine's" in found.detail


def test_a_node_with_several_faults_tells_the_worst_first_and_all_there_is_to_do() -> None:
    found = check("nodes gpu1", worker(python="3.11.9", ray="2.59.0", clock_offset_s=5.0))

    assert found.severity is Severity.FAIL
    assert found.detail.startswith("Ray 2.59.0")
    assert all(part in found.what_to_do for part in ("ray[default]==2.60.0", "Python 3.11.7", "timedatectl"))


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "lustre", "9p", "ceph", "fuse.glusterfs", "virtiofs"])
def test_filesystems_that_other_machines_can_write(kind: str) -> None:
    assert is_shared(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs", "fuseblk"])
def test_filesystems_of_this_machine_alone(kind: str) -> None:
    assert not is_shared(kind)
