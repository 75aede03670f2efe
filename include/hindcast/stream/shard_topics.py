"""What the topics hold of the shards that one worker consumes."""

from __future__ import annotations

from hindcast.errors import OffsetsLostError
from hindcast.kafka.offsets import TopicOffsets, across
from hindcast.leases.lease import LeaseKey
from hindcast.partitions import Offsets
from hindcast.pipeline import TOPIC_STRIDE
from hindcast.settings import Settings
from hindcast.stream.loaded_pipelines import LoadedPipelines


class ShardTopics:
    """Asks the broker for the offsets of shards.

    The worker's main thread asks. While it seals a sink, a thread of :class:`ShardStarter` asks instead, and
    the main thread waits for that before it asks again: no two threads ask at once.
    """

    def __init__(self, settings: Settings, deployed: LoadedPipelines) -> None:
        self._offsets = TopicOffsets(settings)  # stays connected: a take-over waits for its answers
        self._deployed = deployed

    def latest(self, key: LeaseKey) -> Offsets:
        """Up to where the topics of the shard's pipeline reach.

        :raises HindcastError: if that is not known
        """
        return across(self._deployed.of_shard(key), self._offsets.latest)

    def check_retained(self, key: LeaseKey, reached: Offsets) -> None:
        """Check that a shard can be read on.

        :param reached: up to where it is read
        :raises OffsetsLostError: if the topic does not hold, or not reach, one of these offsets
        """
        pipeline = self._deployed.of_shard(key)
        earliest = across(pipeline, self._offsets.earliest)
        latest = across(pipeline, self._offsets.latest)
        for partition, offset in reached.items():
            lost = {
                "topic": pipeline.topics[partition // TOPIC_STRIDE].name,
                "partition": partition % TOPIC_STRIDE,
                "pipeline": pipeline.name,
                "shard": key.status_value,
                "start": offset,
            }
            if partition not in latest:
                problem = "the topic no longer has that partition: it was deleted and created again"
                raise OffsetsLostError(**lost, end="its end", problem=problem)
            if offset < earliest[partition]:
                problem = "the topic no longer holds them (retention or a deletion)"
                raise OffsetsLostError(**lost, end=earliest[partition] - 1, problem=problem)
            if offset > latest[partition]:
                problem = f"the topic ends at {latest[partition]}: it was deleted and created again"
                raise OffsetsLostError(**lost, end="later", problem=problem)
