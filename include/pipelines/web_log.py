"""Requests for content pages in windows of 5 minutes that advance by 1 minute, from access logs in Common Log
Format.

It shows plain text as a source: each line is parsed or becomes a dead letter, and none is lost. Real lines
are dirty: quotes within the request, no protocol, ``-`` for no bytes, bytes that are no UTF-8. The logs are a
Spark classic since NASA's of July 1995 were published.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast import Format, Table, Topic, Window, pipeline

SCHEMA = (
    "host string, identity string, user string, ts timestamp, "
    "method string, path string, status int, bytes long"
)
#: host identity user [time] "request" status bytes. The request is greedy: it may hold quotes.
LINE = r'^(\S+) (\S+) (\S+) \[([^\]]+)\] "(.*)" (\d{3}) (\d{1,18}|-)\s*$'
CLIENT_ERROR = 400  # the least HTTP status that says a request was not served
CONTENT = r"(\.html?|/[^./]*)$"


def parse(line: Column) -> Column:
    """One line as a struct; null where it is not a log line or its time is none."""
    part = [F.regexp_extract(line, LINE, group) for group in range(8)]
    ts = F.try_to_timestamp(part[4], F.lit("dd/MMM/yyyy:HH:mm:ss Z"))
    words = F.split(F.trim(part[5]), r"\s+")
    named = F.struct(
        part[1].alias("host"),
        part[2].alias("identity"),
        part[3].alias("user"),
        ts.alias("ts"),
        F.get(words, F.lit(0)).alias("method"),
        F.get(words, F.lit(1)).alias("path"),
        part[6].try_cast("int").alias("status"),
        F.when(part[7] != "-", part[7].try_cast("long")).alias("bytes"),
    )
    return F.when((part[0] != "") & ts.isNotNull(), named)


def page() -> Column:
    """The path without its query where it is a content page: .html, .htm or no extension; null for images and
    the like.
    """
    path = F.regexp_replace("path", r"[?#].*$", "")
    return F.when(path.rlike(CONTENT), path)


def top_pages(requests: DataFrame, pages: int) -> DataFrame:
    """The most wanted pages of each day, from a frame of requests: a question for the batch. Equals are in
    their names' order.
    """
    daily = (
        requests.withColumn("page", page())
        .where(F.col("page").isNotNull())
        .groupBy(F.to_date("ts").alias("day"), "page")
        .count()
    )
    ranked = daily.selectExpr("*", "row_number() OVER (PARTITION BY day ORDER BY count DESC, page) AS rank")
    return ranked.where(F.col("rank") <= pages).orderBy("day", "rank")


@pipeline(
    source=Topic("access_log", schema=SCHEMA, key="host", format=Format.TEXT, parse=parse),
    event_time="ts",
    watermark="1 minute",
    window=Window("5 minutes", slide="1 minute"),
    sink=Table("page_requests", keys=["window", "page"]),
    version=1,
    paused=True,
)
def web_log(requests: DataFrame) -> DataFrame:
    """Requests, errors and bytes of each content page in each window."""
    pages = requests.withColumn("page", page()).where(F.col("page").isNotNull())
    return pages.groupBy("window", "page").agg(
        F.count("*").alias("requests"),
        F.count_if(F.col("status") >= CLIENT_ERROR).alias("errors"),
        F.sum("bytes").alias("bytes"),
    )
