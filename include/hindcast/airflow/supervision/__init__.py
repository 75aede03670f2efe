"""The supervisor: what it sees of a fleet, when it looks again, and what it starts."""
