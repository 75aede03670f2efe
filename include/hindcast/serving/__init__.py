"""What readers get: the stream's result, and the batch's in its place for the windows that were corrected."""
