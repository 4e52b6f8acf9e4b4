"""Moving processes to other nodes, as `decide.offload` decides."""
