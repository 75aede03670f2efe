"""Processes: detached services, how a process ends, and the points at which a test kills it."""
