"""The programs that run Spark, one module each: ``python -m hindcast.apps.consume``."""
