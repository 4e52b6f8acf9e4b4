"""Acts on the cluster. Only `ray_gateway` and `ray_rpc` resize nodes and call raylets; both use private
interfaces of Ray."""
