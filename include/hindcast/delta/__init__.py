"""Delta tables below the library: commits, files, statistics. No Spark."""
