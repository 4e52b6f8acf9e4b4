"""Observe: what nodes really do, where that is heading, and what waits for room."""
