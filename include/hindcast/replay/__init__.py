"""The batch: the same offsets, run again as one job."""
