"""Reaching a Ray cluster: within seconds, or an answer why not.

`ray.init` alone tries for minutes where nothing listens, and then does not say what is wrong.
"""

import logging
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc
import ray
from ray._private import services
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc

from distributed_grid.model.checkup_facts import Trouble, Unreached, in_one_line
from distributed_grid.model.listening import AUTO, why_no_address

_ANSWER_S: Final = 5.0
_ALIVE: Final = gcs_pb2.GcsNodeInfo.GcsNodeState.ALIVE


def connect(address: str, **options: object) -> Unreached | None:
    """Join a running cluster as a driver, without log output; the reason if that fails. `auto`: this machine's cluster.

    `options`: for `ray.init`, in addition to or instead of those of a quiet driver.
    """
    if address == AUTO:
        return _connect_to_the_one_here(options)
    try:
        unreached = _why_no_head(address)
        if unreached is not None and unreached.trouble is Trouble.TOKEN and _use_token():
            unreached = _why_no_head(address)
        if unreached is not None:
            return unreached
        quiet = {"namespace": "grid", "log_to_driver": False, "logging_level": logging.ERROR}
        ray.init(address=address, **(quiet | options))
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds, for example for a missing token
        return Unreached(trouble_of(error), in_one_line(error))
    return None


def _use_token() -> bool:
    """Use the token in the user's home unless the environment says otherwise; False if there is none.

    Ray does this by itself only for a cluster that it found, not for one whose address it was given.
    """
    try:
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    except ImportError:  # an older Ray leaves that to the user
        return False
    return bool(maybe_enable_token_auth_if_token_available(warn_if_disabled=False))


def _connect_to_the_one_here(options: dict[str, Any]) -> Unreached | None:
    """The cluster that Ray itself would choose: $RAY_ADDRESS, or the last one started here, even if it is gone."""
    try:
        here = services.canonicalize_bootstrap_address(AUTO) or "local"
    except (ConnectionError, ValueError) as error:
        return Unreached(Trouble.NOTHING_THERE, in_one_line(error))
    unreached = connect(here, **options)
    return replace(unreached, why=f"{here}: {unreached.why}") if unreached else None


def trouble_of(error: Exception) -> Trouble:
    if isinstance(error, ray.exceptions.AuthenticationError):
        return Trouble.TOKEN
    if "Version mismatch" in str(error):
        return Trouble.VERSIONS
    return Trouble.OTHER


def _why_no_head(address: str) -> Unreached | None:
    if why_not := why_no_address(address):
        return Unreached(Trouble.ADDRESS, why_not)
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except OSError as error:
        reason = getattr(error, "strerror", None) or in_one_line(error)
        return Unreached(Trouble.NOTHING_THERE, f"nothing listens there ({reason})")
    return _why_not_a_head(address)


def _why_not_a_head(address: str) -> Unreached | None:
    """Ask whether what listens there is a control service, and one that answers us."""
    channel = init_grpc_channel(address)
    try:
        stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        stub.CheckAlive(gcs_service_pb2.CheckAliveRequest(), timeout=_ANSWER_S)
        nodes = stub.GetAllNodeInfo(gcs_service_pb2.GetAllNodeInfoRequest(), timeout=_ANSWER_S).node_info_list
        return why_no_node_here([node for node in nodes if node.state == _ALIVE])
    except grpc.RpcError as error:
        match error.code():
            case grpc.StatusCode.UNAUTHENTICATED:
                return Unreached(Trouble.TOKEN, "it requires a token, and got none or a wrong one")
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return Unreached(Trouble.SILENT, f"it listens, but did not answer in {_ANSWER_S:.0f} s")
            case _:
                return Unreached(Trouble.NOT_RAY, "what listens there does not answer like a Ray head")
    finally:
        channel.close()


def why_no_node_here(alive: Sequence[Any]) -> Unreached | None:
    """Programs join through a node on their own machine. If there is none, Ray ends the whole process."""
    if not alive or any(Path(node.raylet_socket_name).exists() for node in alive):
        return None  # without any nodes, the head's own is about to come
    heads = ", ".join(node.node_manager_address for node in alive if node.is_head_node) or "not known"
    return Unreached(Trouble.ELSEWHERE, f"no node of that cluster runs on this machine; its head is {heads}")
