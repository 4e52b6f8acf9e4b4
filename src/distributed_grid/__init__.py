"""Distributed Grid: lend and borrow capacity between the nodes of one live Ray cluster."""

__version__ = "0.1.0"
