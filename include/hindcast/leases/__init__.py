"""Leases: who owns what, how long, and in which epoch. Pure Python over one Delta table."""
