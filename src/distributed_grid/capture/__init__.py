"""What a boost's shell puts into the Python programs that run in it; see `sitecustomize.py` beside this file."""
