"""The code inside a captured program: loaded by `sitecustomize.py`, by path, once the program has imported ray.

Only the standard library and ray: nothing of grid need be installed where the program runs.
"""
