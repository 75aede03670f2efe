"""Refuse to judge a replay that lacks records which the stream had: records that were erased in between."""

from __future__ import annotations

import pyarrow.compute as pc

from hindcast.archive.erased_records import first_erased
from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.delta.open_table import open_table
from hindcast.errors import ErasedRecordsError
from hindcast.installation import Installation
from hindcast.pipeline import TOPIC_STRIDE, Pipeline
from hindcast.replay.batch import side_rows_url
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.tables.table_names import ControlTable
from hindcast.verdict.check_side_rows import PLACE, places_filed


def refuse_erased(
    installation: Installation, pipeline: Pipeline, version: int, run_id: str, plan: RecordedPlan
) -> None:
    """Check that the stream has read nothing of the range that was erased since.

    Such a record is poison for the replay, and no dead letter of the stream. A version that read the archive
    after the erasure has it as a dead letter, so it is judged as ever.

    :raises ErasedRecordsError: naming the first of them
    """
    if all(plan.seams.get(partition, first) <= first for partition, first in plan.read_from.items()):
        return  # the topics themselves were read
    settings = installation.settings
    side_rows = open_table(side_rows_url(settings, pipeline.name, run_id), settings.storage_options)
    poison = arrow_dataset(side_rows).to_table(columns=PLACE, filter=pc.field("kind") == "poison").to_pandas()
    if poison.empty:
        return
    letters = places_filed(
        installation, ControlTable.DEAD_LETTERS, pipeline.name, version, plan.read_from, plan.end
    )
    both = poison.merge(letters, how="left", on=PLACE, indicator=True)
    lacking = both[both["_merge"] == "left_only"]
    count = 0
    firsts = []
    for index, topic in enumerate(pipeline.topics):
        of_topic = lacking[lacking["partition"] // TOPIC_STRIDE == index]
        places = {}
        for partition, rows in of_topic.groupby("partition"):
            places[int(partition) % TOPIC_STRIDE] = rows["offset"].tolist()
        erased, first = first_erased(settings, topic.name, places)
        count += erased
        firsts += [
            f"offset {offset} of partition {partition} of {topic.name}" for partition, offset in first.items()
        ]
    if count:
        raise ErasedRecordsError(
            run_id=run_id, pipeline=pipeline.name, version=version, count=count, first=firsts[0]
        )
