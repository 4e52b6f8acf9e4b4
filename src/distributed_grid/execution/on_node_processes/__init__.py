"""Looking at the processes of a node, and ending one. This package travels by value: grid is not installed there.

So it may import only what Python ships, and of this project nothing but itself, name by name.
"""
