"""Shards and versions: how partitions are dealt out, what is wanted, and which shards a worker holds."""
