"""`grid demo`: boosts at work on a real cluster, every claim checked against Ray itself.

Runs in a process of its own, since it is a Ray driver: `python -m distributed_grid.demo`.
"""
