"""The classes of the founding documents at the paths that those documents name; they live in `sdk`."""
