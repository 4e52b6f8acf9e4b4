"""Which processes of a node could run elsewhere, which are worth it, and where they would go."""
