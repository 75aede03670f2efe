"""What readers get: the stream's result, or the answer of a replay for the windows that were corrected."""
