"""Frozen data: what things are. No I/O, no clock, no Ray."""
