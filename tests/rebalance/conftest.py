"""Tests here run the whole engine on a fake cluster."""

from engine_fixtures import lab, make_grid

__all__ = ["lab", "make_grid"]
