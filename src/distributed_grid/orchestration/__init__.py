"""Composition: what was observed meets what is decided, and is done. The public classes live here."""
