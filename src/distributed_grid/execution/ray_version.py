"""Refusing an old Ray. Imports nothing of Ray, so that it can be told politely."""

from distributed_grid.decide.versions import OLDEST_RAY, is_new_enough
from distributed_grid.errors import RayUnsuitable


def check_ray_version(version: str) -> None:
    """Raise `RayUnsuitable` for a Ray that cannot resize raylets."""
    if not is_new_enough(version):
        raise RayUnsuitable(
            f"Ray {version} is too old: grid needs {OLDEST_RAY} or newer",
            because=["older versions cannot change a running node's resources"],
            try_next="pip install --upgrade 'ray[default]' on every node, then restart the cluster.",
        )
