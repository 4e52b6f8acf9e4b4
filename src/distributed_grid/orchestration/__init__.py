"""The classes of the first design documents, at the paths that those documents name; they live in `sdk`."""
