"""The judgement: the stream's table against its hindcast, each difference explained."""
