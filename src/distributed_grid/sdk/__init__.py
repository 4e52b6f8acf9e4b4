"""The public Python classes. Each talks to a running controller, or runs the engine in its own process."""
