"""The stream: a worker runs one fenced Spark query for each shard it holds."""
