"""The judgement: compare the stream's table with its hindcast, and explain each difference."""
