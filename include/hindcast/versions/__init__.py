"""Reprocess a pipeline: start a new version while the active one runs on, compare the two, promote the new
one, back out of that or discard it.
"""
