"""Streams that others run: their batches are recorded, and their tables judged.

A query of Structured Streaming says in its checkpoint what each batch read and under which watermark, and the
table says which of its versions is which batch. Brought into the ledger, these are all that a verdict needs
to know of a stream.
"""
