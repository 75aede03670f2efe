"""Kafka's topics, partitions, offsets and timestamps, through kafka-python; never on the data path."""
