"""Kafka's topics, partitions, offsets and timestamps, through kafka-python, which is never on the data path;
and how every client, Spark's too, proves to the brokers who it is.
"""
