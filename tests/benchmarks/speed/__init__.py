"""What a supervised stream costs beside the plain jobs that people run: ``make bench``."""
