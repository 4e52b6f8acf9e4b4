"""Roles, pools and workloads; the inventory that they are planned on; and plans. Frozen data."""
