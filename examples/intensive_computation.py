#!/usr/bin/env python3
"""CPU-bound: in how many ways can N queens stand on a board of N x N, none of them attacking another?

    grid run --cpus 4 -- examples/intensive_computation.py [N]

A plain Ray program that knows nothing of grid. Each place for the first queen is a task (the other half of the board
is its mirror image); `grid run` keeps all of them on CPUs that are reserved for it. By itself, with `python`
instead of `grid run`, it uses the whole cluster that RAY_ADDRESS names, with whatever was lent to its nodes.
"""

import itertools
import sys
import time
from collections import Counter

import ray

KNOWN = {8: 92, 9: 352, 10: 724, 11: 2_680, 12: 14_200, 13: 73_712, 14: 365_596}  # OEIS A000170


def solutions(size: int, columns: int, left: int, right: int) -> int:
    """So many ways to fill the rows that are left; the bits are squares which are under attack in the next row."""
    everywhere = (1 << size) - 1
    if columns == everywhere:
        return 1
    found, free = 0, everywhere & ~(columns | left | right)
    while free:
        queen = free & -free
        free -= queen
        found += solutions(size, columns | queen, (left | queen) << 1, (right | queen) >> 1)
    return found


@ray.remote(num_cpus=1)
def with_first_queen_at(column: int, size: int) -> tuple[int, str, float, float]:
    """How many solutions there are; and where they were counted, from when to when."""
    began, queen = time.time(), 1 << column
    found = solutions(size, queen, queen << 1, queen >> 1)
    if 2 * column + 1 != size:
        found *= 2  # the middle column is its own mirror image, the others have one
    return found, ray.get_runtime_context().get_node_labels()["grid/name"], began, time.time()


def main(size: int = 12) -> int:
    ray.init("auto", log_to_driver=False, logging_level="ERROR")
    began = time.time()
    parts = ray.get([with_first_queen_at.remote(column, size) for column in range((size + 1) // 2)])
    took, busy = time.time() - began, sum(ended - began for _, _, began, ended in parts)

    changes = sorted(step for _, _, began, ended in parts for step in ((began, 1), (ended, -1)))
    at_once = max(itertools.accumulate(change for _, change in changes))
    nodes = ", ".join(f"{count} on {node}" for node, count in sorted(Counter(node for _, node, *_ in parts).items()))
    total = sum(found for found, *_ in parts)
    print(f"{size} queens: {total:,} solutions in {took:.1f} s, for {busy:.1f} s of work")
    print(f"{len(parts)} tasks, up to {at_once} at a time: {nodes}")

    if total != KNOWN.get(size, total):
        print(f"That is wrong: there are {KNOWN[size]:,}", file=sys.stderr)
        return 1
    print("The number is right." if size in KNOWN else "This program does not know whether that is right.")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
