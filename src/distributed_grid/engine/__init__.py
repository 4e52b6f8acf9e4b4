"""The engine of one cluster: leases, queue, scheduler, rebalancing and offloading, started and stopped together."""
