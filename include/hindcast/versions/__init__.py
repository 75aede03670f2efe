"""Reprocess a pipeline: a new version beside the active one, compared, promoted, backed out or discarded."""
