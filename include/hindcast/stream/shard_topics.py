"""What the topics and their archives hold of the shards that one worker consumes."""

from __future__ import annotations

from hindcast.archive.archive_or_live import HeldRecords
from hindcast.archive.held_records import held_records
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
        self._settings = settings
        self._offsets = TopicOffsets(settings)  # stays connected: a take-over waits for its answers
        self._deployed = deployed

    def latest(self, key: LeaseKey) -> Offsets:
        """Up to where the topics of the shard's pipeline reach.

        :raises HindcastError: if that is not known
        """
        return across(self._deployed.of_shard(key), self._offsets.latest)

    def check_retained(self, key: LeaseKey, reached: Offsets) -> HeldRecords:
        """Check that a shard can be read on, from its topics or from what their archives hold.

        :param reached: up to where it is read
        :returns: what can be read. Archives were asked only if a topic has dropped what comes next
        :raises OffsetsLostError: if neither holds, or the topic does not reach, one of these offsets
        """
        pipeline = self._deployed.of_shard(key)
        held = held_records(self._settings, pipeline, self._offsets, reached)
        for partition, offset in reached.items():
            lost = {
                "topic": pipeline.topics[partition // TOPIC_STRIDE].name,
                "partition": partition % TOPIC_STRIDE,
                "pipeline": pipeline.name,
                "shard": key.status_value,
                "start": offset,
            }
            if partition not in held.latest:
                problem = "the topic no longer has that partition: it was deleted and created again"
                raise OffsetsLostError(**lost, end="its end", problem=problem)
            if offset > held.latest[partition]:
                problem = f"the topic ends at {held.latest[partition]}: it was deleted and created again"
                raise OffsetsLostError(**lost, end="later", problem=problem)
            gaps = held.missing(partition, offset, held.earliest[partition])
            if gaps:
                first, last = gaps[0]
                problem = "the topic no longer holds them (retention or a deletion), and no archive does"
                raise OffsetsLostError(**{**lost, "start": first}, end=last - 1, problem=problem)
        return held
