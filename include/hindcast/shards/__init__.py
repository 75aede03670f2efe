"""Shards and versions: how partitions are dealt out, what is wanted of a pipeline, and which shards may be
consumed now.
"""
