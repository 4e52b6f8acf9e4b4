"""Roles, pools and workloads; the inventory they are planned on; and plans. Frozen data."""
