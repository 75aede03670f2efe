"""Commit how far shards are to consumer groups, where dashboards of lag look for it.

Nothing reads it back: a shard's place is in its sink, and a dashboard may be some seconds behind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import structlog

from hindcast.errors import HindcastError
from hindcast.kafka.group_offsets import GroupOffsets
from hindcast.partitions import Offsets
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.settings import Settings
from hindcast.stream.loaded_pipelines import LoadedPipelines
from hindcast.stream.running_shard import RunningShard

_log = structlog.get_logger(__name__)


class GroupCommits:
    """Commits for the shards of one worker. Its audit thread calls it."""

    def __init__(
        self, settings: Settings, deployed: LoadedPipelines, offsets: GroupOffsets | None = None
    ) -> None:
        self._prefix = settings.kafka_group_prefix
        self._deployed = deployed
        self._offsets = offsets or GroupOffsets(settings)
        # By group, what was committed last.
        self._committed: dict[str, Offsets] = {}

    def commit(self, shards: Iterable[RunningShard]) -> None:
        """Commit where these shards are now, unless that was done. A failure is only logged."""
        if not self._prefix:
            return
        reached: dict[Pipeline, Offsets] = defaultdict(dict)
        for shard in shards:
            key = shard.runner.lease.key
            reached[self._deployed.of_shard(key)].update(shard.runner.end_offsets)
        for pipeline, offsets in reached.items():
            group = f"{self._prefix}{pipeline.name}.v{pipeline.version}"
            if self._committed.get(group) == offsets:
                continue
            try:
                self._offsets.commit(group, _by_topic(pipeline, offsets))
            except HindcastError as error:
                message = "How far shards are was not committed to their group; the next pass will."
                _log.warning(message, group=group, reason=str(error))
                continue
            self._committed[group] = offsets


def _by_topic(pipeline: Pipeline, offsets: Offsets) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for partition, offset in offsets.items():
        index, number = divmod(partition, TOPIC_STRIDE)
        found[pipeline.topics[index].name][number] = offset
    return dict(found)
