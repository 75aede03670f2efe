"""The tables: columns, rows and upkeep of what the platform writes about itself, and the fenced sink. No
Spark.
"""
