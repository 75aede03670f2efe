"""Page views with the profile of who viewed and the search that led there: a stream joined with a changing
table and another stream.

The click enrichment of *Kafka: The Definitive Guide* (2nd edition, chapter 14). Profiles come from change
capture, the last one of a user counts; a search led to a view that came within one second after it. A view is
enriched at once with what has arrived by then. In hindsight each view has the profile that held at its own
time and the search that came before it, whenever either arrived: the verdict shows the price of not waiting.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from hindcast import Table, Topic, pipeline

LED_WITHIN_US = 1_000_000
#: The order of events that happened at the same moment.
PROFILE, SEARCH, VIEW = 0, 1, 2
RESULT = "view string, user string, page string, ts timestamp, city string, age int, words string"


def _events(views: DataFrame, searches: DataFrame, profiles: DataFrame) -> DataFrame:
    """All three as one frame: user, ts, also in microseconds, kind, place, and the columns of each, null for
    the others.
    """
    columns = {"view": "string", "page": "string", "words": "string", "city": "string", "age": "int"}
    frames = []
    for kind, frame in ((PROFILE, profiles), (SEARCH, searches), (VIEW, views)):
        own = [
            F.col(name) if name in frame.columns else F.lit(None).cast(of).alias(name)
            for name, of in columns.items()
        ]
        frames.append(
            frame.select(
                "user",
                "ts",
                F.unix_micros("ts").alias("at_us"),
                F.lit(kind).alias("kind"),
                "_partition",
                "_offset",
                *own,
            )
        )
    return frames[0].unionByName(frames[1]).unionByName(frames[2])


class Enrich(StatefulProcessor):
    """One user: the profile that holds, and the last search."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.profile = handle.getValueState("profile", "city string, age int")
        self.search = handle.getValueState("search", "at_us long, words string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803, ARG002 - Spark's names
        profile: Any = self.profile.get() if self.profile.exists() else (None, None)
        search: Any = self.search.get() if self.search.exists() else None
        for row in sorted(
            rows, key=lambda row: (row["at_us"], row["kind"], row["_partition"], row["_offset"])
        ):
            if row["kind"] == PROFILE:
                profile = (row["city"], row["age"])
                self.profile.update(profile)
            elif row["kind"] == SEARCH:
                search = (row["at_us"], row["words"])
                self.search.update(search)
            else:
                led = search is not None and 0 <= row["at_us"] - search[0] <= LED_WITHIN_US
                city, age = profile
                words = search[1] if led else None
                yield Row(
                    view=row["view"],
                    user=key[0],
                    page=row["page"],
                    ts=row["ts"],
                    city=city,
                    age=age,
                    words=words,
                )

    def close(self) -> None:
        pass


def as_it_was(views: DataFrame, searches: DataFrame, profiles: DataFrame) -> DataFrame:
    """Each view with what was true at its own time."""
    before = "OVER (PARTITION BY user ORDER BY at_us, kind, _partition, _offset ROWS UNBOUNDED PRECEDING)"
    known = _events(views, searches, profiles).selectExpr(
        "*",
        f"last(IF(kind = {PROFILE}, struct(city, age), NULL), true) {before} AS profile",
        f"last(IF(kind = {SEARCH}, struct(at_us, words), NULL), true) {before} AS search",
    )
    led = F.col("at_us") - F.col("search.at_us") <= LED_WITHIN_US
    words = F.when(led, F.col("search.words")).alias("words")
    return known.where(F.col("kind") == VIEW).select(
        "view", "user", "page", "ts", "profile.city", "profile.age", words
    )


@pipeline(
    source=Topic(
        "page_views",
        schema="view string NOT NULL, user string NOT NULL, page string, ts timestamp",
        key="user",
    ),
    joined=[
        Topic(
            "searches", schema="search string, user string NOT NULL, words string, ts timestamp", key="user"
        ),
        Topic(
            "profiles",
            schema="user string NOT NULL, city string, age int, ts timestamp",
            key="user",
            watermark=False,
        ),
    ],
    event_time="ts",
    watermark="10 seconds",
    sink=Table("enriched_views", keys=["view"]),
    version=1,
    paused=True,
    re_execute=True,
    hindsight=as_it_was,
)
def click_enrichment(views: DataFrame, searches: DataFrame, profiles: DataFrame) -> DataFrame:
    """Each view with the profile and the search that were known when it came."""
    return (
        _events(views, searches, profiles)
        .groupBy("user")
        .transformWithState(
            statefulProcessor=Enrich(), outputStructType=RESULT, outputMode="append", timeMode="None"
        )
    )
