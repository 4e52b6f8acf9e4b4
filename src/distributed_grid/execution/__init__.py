"""Acts on the cluster. Only `ray_gateway` and `ray_rpc` call Ray's private interfaces."""
