"""Collects the facts about everything that grid needs; `decide.diagnosis` interprets them.

`python -m distributed_grid.controller.checkup` runs apart from the command line: it reads one JSON object from
stdin and writes one to stdout. It never ends without an answer: a cluster that hangs is itself a finding.
"""

from distributed_grid.controller.checkup.rounds import Checkup

__all__ = ["Checkup"]
