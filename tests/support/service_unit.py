"""The systemd unit that is delivered with grid."""

from configparser import ConfigParser
from pathlib import Path

UNIT = Path(__file__).parents[2] / "deploy/grid.service"


def service_unit() -> ConfigParser:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    return unit


STAYS_DOWN = tuple(map(int, service_unit()["Service"]["RestartPreventExitStatus"].split()))
"""After these exit codes, systemd does not start a supervisor again."""
