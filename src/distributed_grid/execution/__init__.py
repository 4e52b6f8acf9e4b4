"""Acting on the cluster. Everything that calls Ray's private interfaces is in `ray_gateway` and `ray_rpc`."""
