"""Code that travels to other nodes, where nothing of grid is installed: the actors, their peers, their wrappers."""
