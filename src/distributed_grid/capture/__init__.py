"""The hook that runs and boost shells put into Python programs; see `sitecustomize.py` beside this file."""
