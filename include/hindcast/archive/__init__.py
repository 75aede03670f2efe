"""Archives of topics: each record once, in a Delta table that outlives the topic's retention.

See :mod:`hindcast.archive.copy_topic`.
"""
