"""The one writer: a detached actor that owns the store, runs the engine and serves the HTTP API."""
