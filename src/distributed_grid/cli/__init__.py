"""The command `grid`. One file per noun; heavy imports happen inside commands."""

from distributed_grid.cli.app import main

__all__ = ["main"]
