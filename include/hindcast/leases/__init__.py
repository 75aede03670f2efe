"""Leases: who owns what, for how long, and in which epoch. Pure Python over one Delta table."""
