"""The code of a probe on its node. This package travels by value: nothing of grid is installed there.

So it may import only what Python and Ray ship. From this project it may import only itself, name by name (a module that
is imported as a whole would not travel).
"""
