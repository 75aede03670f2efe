"""Declaring and loading pipelines: what is wrong is refused with file, line and the valid form, and the
others load.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast import catalog
from hindcast.errors import (
    BadNameError,
    BadTopicNameError,
    PipelineError,
    PipelineMistakesError,
    UnknownPipelineError,
)
from hindcast.pipeline import (
    CONTROL_TABLES,
    TOPIC_STRIDE,
    Metadata,
    Topic,
    check_name,
    check_topic,
    parse_duration,
    parse_start,
)
from hindcast.pipeline_checks import check_bounded_columns, check_served_columns
from hindcast.settings import Settings
from hindcast.tables.archive_schema import archive_url
from hindcast.tables.table_names import ControlTable
from hindcast_sandbox.load import report_path

GOOD = """
from hindcast import Table, Topic, Window, pipeline

@pipeline(
    source=Topic("trades", schema="ticker string, ts timestamp, ask double", key="ticker"),
    event_time="ts", watermark="10 seconds", window=Window("5 seconds", slide="1 second"),
    sink=Table("{name}", keys=["window", "ticker"]), version=1, shards=2,
)
def {name}(trades):
    return trades
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def test_a_good_module_loads(tmp_path: Path) -> None:
    """A declared function is found under its own name, with its file and line."""
    path = write(tmp_path, "one", GOOD.format(name="one"))
    (pipeline,) = catalog.load(tmp_path).values()
    assert (pipeline.name, pipeline.file, pipeline.watermark_delay) == (
        "one",
        str(path),
        timedelta(seconds=10),
    )


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ('watermark="10 seconds"', 'watermark="10 parsecs"', "10 parsecs"),
        ('"5 seconds", slide="1 second"', '"1 second", slide="5 seconds"', "slide"),
        ('event_time="ts"', 'event_time="when"', "when"),
        ('event_time="ts"', 'event_time="ask"', "not a timestamp"),
        ('key="ticker"', 'key="symbol"', "symbol"),
        ("ask double", "ask money", "money"),
        ("ask double", "ask", "it ends where a type should follow"),
        ("ask double", "ticker double", "twice"),
        ("ask double", "Ticker double", "twice"),
        ("ask double", "`` double", "a column without a name"),
        ("ask double", "window double", "reserved"),
        ("ask double", "Window double", "reserved"),
        ("ask double", "ask char(3)", "has the type char(3), which no record can be read as; write string"),
        ("ask double", "ask array<struct<x: varchar(9)>>", "has the type varchar(9), which no record"),
        (
            "ask double",
            "ask interval",
            "has the type interval, which no record can be read as; write interval day to second",
        ),
        (
            "ask double",
            "ask char(3) collate UNICODE",
            "has the type char(3) collate UNICODE, which no record",
        ),
        ("ask double", "ask void", "has the type void, which no record"),
        ("ask double", "ask time(3)", "has the type time(3), which no record"),
        ("ask double", "ask geography(4326)", "has the type geography(4326), which no record"),
        ("ask double", "ask map<int, string>", "write map<string, ...>"),
        ('keys=["window", "ticker"]', 'keys=["ticker"]', "lack 'window'"),
        ('keys=["window", "ticker"]', 'keys=["window"]', "use shards=1"),
        ("version=1", "version=0", "version"),
        ("shards=2", "shards=0", "shards"),
        ('Topic("trades"', 'Topic("tra/des"', "tra/des"),
        ("version=1", 'version=1, start="now"', "is none of earliest, latest"),
        ("version=1", 'version=1, start="2026-01-05T12:00:00"', "is none of earliest, latest"),
        ("version=1", 'version=1, reference=("earliest", "latest")', "is not a range: two times"),
        ("version=1", "version=1, reference=('{\"0\": 9}', '{\"0\": 1}')", "is not a range: two times"),
        ("version=1", 'version=1, reference=("2026-01-05", "soon")', "not two ends of a range"),
        (
            "version=1",
            'version=1, joined=[Topic("more", schema="ts timestamp")]',
            "for anything else call F.window",
        ),
        ("version=1", "version=1, late=lambda rows: rows", "both late= and late_sink="),
        ("version=1", "version=1, re_execute=True", "for anything else call F.window"),
        (
            'keys=["window", "ticker"]',
            'keys=["window", "ticker"], mode="upsert"',
            "for anything else call F.window",
        ),
        ('key="ticker"', 'key="ticker", format="text"', "both format=Format.TEXT and parse="),
        ('key="ticker"', 'key="ticker", format="avro"', "both format=Format.AVRO and avro_schema="),
        (
            'key="ticker"',
            'key="ticker", format="protobuf"',
            "format=Format.PROTOBUF, message= and descriptor=",
        ),
        (
            'key="ticker"',
            'key="ticker", message="shop.Order"',
            "format=Format.PROTOBUF, message= and descriptor=",
        ),
        (
            'key="ticker"',
            'key="ticker", format="protobuf", message="Order", descriptor="x"',
            "source.descriptor 'x' is not bytes",
        ),
        (
            'key="ticker"',
            'key="ticker", format="text", parse=str, registry=True',
            "no schema registry has lines of text",
        ),
        ('Table("one"', 'Table("..")' + '  # ("', ".."),
        (
            "version=1",
            'version=1, late=lambda rows: rows, late_sink=Table("One")',
            "the sink and late_sink are one table",
        ),
        (
            "version=1",
            'version=1, ratio_bound={"cost": 0.9}',
            "ratio_bound 0.9 of 'cost' is not a number from 1",
        ),
        (
            "version=1",
            'version=1, ratio_bound={"cost": float("nan")}',
            "nan of 'cost' is not a number from 1",
        ),
        ("version=1", 'version=1, ratio_bound={"cost": "1.7"}', "'1.7' of 'cost' is not a number from 1"),
        ("version=1", 'version=1, ratio_bound={"cost": True}', "True of 'cost' is not a number from 1"),
        ("version=1", 'version=1, ratio_bound={"ticker": 2}', "'ticker', which is one of the sink's keys"),
        ("version=1", "version=1, ratio_bound={1: 2}", "the column 1, which is not a text"),
        ("version=1", "version=1, ratio_bound=1.7", "ratio_bound 1.7 is not a dictionary of columns"),
        ("version=1", 'version=1, tolerance={"ask": 0}', "the tolerance 0 of 'ask' is not a number above 0"),
        ("version=1", 'version=1, tolerance={"ask": float("inf")}', "inf of 'ask' is not a number above 0"),
        ("version=1", 'version=1, tolerance={"window": 1.0}', "'window', which is one of the sink's keys"),
        ("version=1", 'version=1, tolerance=["ask"]', "tolerance ['ask'] is not a dictionary of columns"),
        ("version=1", "version=1, changed_at_most=1.5", "changed_at_most 1.5 is not from 0 to 1"),
        ("version=1", 'version=1, changed_at_most=float("nan")', "changed_at_most nan is not from 0 to 1"),
        ("version=1", "version=1, changed_at_most=True", "changed_at_most True is not from 0 to 1"),
        ("version=1", 'version=1, changed_at_most="1 %"', "changed_at_most '1 %' is not a number"),
        ('Table("one"', 'Table("verdict_trends"', "one of the platform's own tables"),
        ('Table("one"', 'Table("leases"', "one of the platform's own tables"),
        ('Table("one"', 'Table("Dead_Letters"', "one of the platform's own tables"),
        (
            "version=1",
            'version=1, late=lambda rows: rows, late_sink=Table("events")',
            "one of the platform's own tables",
        ),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_place(
    tmp_path: Path, was: str, becomes: str, says: str
) -> None:
    """Each mistake is named, with the file and the form to follow, and the good module beside it loads."""
    text = GOOD.format(name="one")
    assert was in text
    text = (
        text.replace('Table("one", keys', 'Table("..", keys') if says == ".." else text.replace(was, becomes)
    )
    path = write(tmp_path, "one", text)
    write(tmp_path, "two", GOOD.format(name="two"))
    found = catalog.load(tmp_path)
    assert list(found) == ["two"]
    error = found.errors[str(path)]
    assert isinstance(error, PipelineError)
    assert says in str(error)
    assert f"{path}:" in str(error)
    assert "Write it like this" in str(error)


def test_bounds_are_declared(tmp_path: Path) -> None:
    """Each at its limit: a ratio of 1 allows nothing more than hindsight, and 0 % of the keys may change."""
    bounds = 'ratio_bound={"cost": 1}, tolerance={"cost": 1e-300}, changed_at_most=0'
    write(tmp_path, "one", GOOD.format(name="one").replace("version=1", f"version=1, {bounds}"))
    pipeline = catalog.load(tmp_path)["one"]
    assert (pipeline.ratio_bound, pipeline.tolerance) == ({"cost": 1}, {"cost": 1e-300})
    assert pipeline.changed_at_most == 0


@pytest.mark.parametrize("bound", ['ratio_bound={"cost": 2.0}', 'tolerance={"cost": 1e-6}'])
def test_rows_that_are_compared_whole_have_no_bounds(tmp_path: Path, bound: str) -> None:
    """Without keys no column has a value of its own that could be near another."""
    text = GOOD.format(name="one").replace(' window=Window("5 seconds", slide="1 second"),', "")
    text = text.replace('keys=["window", "ticker"]', 'keys=["ticker"]')
    write(tmp_path, "one", text.replace("version=1", f"version=1, {bound}"))
    (error,) = catalog.load(tmp_path).errors.values()
    assert "needs rows that are compared by their keys" in str(error)
    upsert = text.replace('keys=["ticker"]', 'keys=["ticker"], mode="upsert"')
    write(tmp_path, "one", upsert.replace("version=1", f"version=1, {bound}"))
    assert list(catalog.load(tmp_path)) == ["one"]


def test_a_bound_of_a_column_that_is_no_number_of_the_result_is_refused(tmp_path: Path) -> None:
    """The result's columns are known once Spark has analysed the function. The mistakes are named with their
    lines, and with the columns that may have a bound.
    """
    bounds = 'ratio_bound={"cost": 2},\n    tolerance={"cost": 1e-6, "name": 1, "nope": 1}'
    path = write(tmp_path, "one", GOOD.format(name="one").replace("version=1", f"version=1, {bounds}"))
    pipeline = catalog.load(tmp_path)["one"]
    types = {"window": "struct<start:timestamp,end:timestamp>", "ticker": "string", "name": "string"}
    check_bounded_columns(pipeline, {**types, "cost": "decimal(10,2)", "nope": "bigint"} | {"name": "double"})
    with pytest.raises(PipelineMistakesError) as caught:
        check_bounded_columns(pipeline, {**types, "cost": "decimal(10,2)"})
    first, second = caught.value.errors
    line = pipeline.line + 4
    assert str(first).startswith(f"{path}:{line}: pipeline one: tolerance names 'name', which is no numeric")
    assert "those are: cost" in str(second) and "'nope'" in str(second)
    with pytest.raises(PipelineMistakesError, match="those are: none"):
        check_bounded_columns(pipeline, types)


@pytest.mark.parametrize(
    ("text", "line"), [("import nowhere_to_be_found", 1), ("x = 1\n\n1 / 0", 3), ("def (", 1)]
)
def test_a_module_that_does_not_import_names_its_line(tmp_path: Path, text: str, line: int) -> None:
    """Whatever a module raises stays its own, with the line that raised it."""
    path = write(tmp_path, "bad", text)
    write(tmp_path, "two", GOOD.format(name="two"))
    found = catalog.load(tmp_path)
    assert list(found) == ["two"]
    assert f"{path}:{line}:" in str(found.errors[str(path)])


def test_a_name_declared_twice_is_refused_in_the_later_file(tmp_path: Path) -> None:
    """The first file keeps the name; the second is told where it is taken."""
    write(tmp_path, "a", GOOD.format(name="one"))
    later = write(tmp_path, "b", GOOD.format(name="one"))
    found = catalog.load(tmp_path)
    assert list(found) == ["one"]
    assert "a.py" in str(found.errors[str(later)])


SHARING = """
from hindcast import Table, Topic, pipeline

@pipeline(
    source=Topic("{name}-topic", schema="ts timestamp"), event_time="ts", watermark="1 second", re_execute=True, version={version},
    sink=Table("{sink}"), late=lambda rows: rows, late_sink=Table("{late}"),
)
def {name}(rows):
    return rows
"""


def test_a_table_at_a_place_of_its_own_has_one_writer(tmp_path: Path) -> None:
    """By whatever name it is declared."""
    text = GOOD.format(name="{name}").replace("sink=Table(", 'sink=Table(url="/lake/orders", name=')
    write(tmp_path, "a", text.format(name="a"))
    later = write(tmp_path, "b", text.format(name="b"))
    found = catalog.load(tmp_path)
    assert list(found) == ["a"]
    assert "its table /lake/orders is that of the pipeline a" in str(found.errors[str(later)])


@pytest.mark.parametrize(
    ("sink", "late", "shared"),
    [
        ("orders", "b_late", "orders"),
        ("ORDERS", "b_late", "orders"),
        ("orders_late", "b_late", "orders_late"),
        ("b", "orders", "orders"),
        ("b", "orders_late", "orders_late"),
    ],
)
def test_a_table_of_another_pipeline_is_refused(tmp_path: Path, sink: str, late: str, shared: str) -> None:
    """A table has one writer, whatever it is called there and whatever its case: the later file is refused
    and names the earlier one.
    """
    first = write(tmp_path, "a", SHARING.format(name="a", version=1, sink="orders", late="orders_late"))
    later = write(tmp_path, "b", SHARING.format(name="b", version=1, sink=sink, late=late))
    found = catalog.load(tmp_path)
    assert list(found) == ["a"]
    said = str(found.errors[str(later)])
    assert f"its table {shared} is that of the pipeline a, {first}:" in said
    assert f"{later}:" in said


def test_two_pipelines_of_one_file_share_no_table(tmp_path: Path) -> None:
    """A file may declare several pipelines, each with tables of its own."""
    one, two = (
        SHARING.format(name=name, version=1, sink="orders", late=f"{name}_late") for name in ("a", "b")
    )
    path = write(tmp_path, "both", one + two)
    assert "its table orders is that of the pipeline a" in str(catalog.load(tmp_path).errors[str(path)])


@pytest.mark.parametrize(
    ("sink", "late"), [("orders", "late_2"), ("orders_2", "orders_late"), ("Orders_Late", "late_2")]
)
def test_a_table_of_another_version_is_refused(tmp_path: Path, sink: str, late: str) -> None:
    """Versions stand side by side, so each writes tables of its own."""
    write(tmp_path, "a", SHARING.format(name="a", version=1, sink="orders", late="orders_late"))
    later = write(tmp_path, "a_2", SHARING.format(name="a", version=2, sink=sink, late=late))
    found = catalog.load(tmp_path)
    assert found.versions("a") == [1]
    assert "is that of version 1" in str(found.errors[str(later)])


def test_names_that_differ_only_by_case_are_refused(tmp_path: Path) -> None:
    """Their replays and checkpoints would share a folder on a store that does not tell them apart."""
    write(tmp_path, "a", SHARING.format(name="orders", version=1, sink="a", late="a_late"))
    later = write(tmp_path, "b", SHARING.format(name="Orders", version=2, sink="b", late="b_late"))
    assert "differs only by case from that of orders" in str(catalog.load(tmp_path).errors[str(later)])


def test_the_names_of_control_tables_are_all_known() -> None:
    """Each table of the control plane is refused as a result's table."""
    assert {table.value for table in ControlTable} == CONTROL_TABLES


def test_all_mistakes_of_a_declaration_are_said_at_once(tmp_path: Path) -> None:
    """Each with the line of its argument, what is wrong, and a valid form; values of a wrong kind hide none
    of the others.
    """
    text = """
from hindcast import Table, Topic, Window, pipeline

@pipeline(
    source=Topic(
        "tra/des",
        schema="ticker string, ts timestamp, ask money",
        format="jsn",
    ),
    event_time="ts",
    watermark=10,
    window=Window("5 parsecs"),
    sink=Table("leases", keys="window", mode="upset"),
    policy="corect",
    captured_floor=2,
    version="1",
    shards=0,
    start="now",
)
def one(trades):
    return trades
"""
    path = write(tmp_path, "one", text)
    error = catalog.load(tmp_path).errors[str(path)]
    assert isinstance(error, PipelineMistakesError)
    expected = [
        (6, "the topic's name 'tra/des'"),
        (7, "'money' at character 34"),
        (8, "source.format 'jsn' is not one of json, text, avro and protobuf"),
        (11, "watermark 10 is not a duration"),
        (12, "'5 parsecs' is not a duration"),
        (13, "one of the platform's own tables"),
        (13, "sink.keys 'window' is not a list of columns"),
        (13, "sink.mode 'upset' is not one of append and upsert"),
        (14, "policy 'corect' is not one of report and correct"),
        (15, "captured_floor 2 is not from 0 to 1"),
        (16, "version '1' is not a whole number"),
        (17, "shards 0 is not from 1"),
        (18, "start 'now' is none of"),
    ]
    said = [(one.fields["line"], one.fields["problem"]) for one in error.errors]
    for line, words in expected:
        close = (
            line - 1 if "tra/des" in words else line
        )  # a name without `name=` is told by the line of its Topic
        assert any(words in problem and at == close for at, problem in said), (words, said)
    assert all(
        f"{path}:{at}: pipeline one: " in str(error) and "Write it like this: " in str(error)
        for at, _ in said
    )


def test_all_refused_files_and_pipelines_are_said_at_once(tmp_path: Path) -> None:
    """Two wrong pipelines of a file, and an exception after them, are told together; so are all files of the
    folder.
    """
    wrong = [GOOD.format(name=name).replace("version=1", "version=0") for name in ("one", "two")]
    first = write(tmp_path, "a", "".join(wrong) + "\n1 / 0\n")
    second = write(tmp_path, "b", "import nowhere_to_be_found")
    write(tmp_path, "c", GOOD.format(name="three"))
    line = first.read_text().splitlines().index("1 / 0") + 1
    found = catalog.load(tmp_path)
    assert list(found) == ["three"]
    refused = found.refused()
    assert refused is not None and refused.exit_code == 2
    for words in (
        "pipeline one: version 0",
        "pipeline two: version 0",
        f"{first}:{line}: ",
        "ZeroDivisionError",
        f"{second}:1: ",
        "nowhere_to",
    ):
        assert words in str(refused)
    assert str(refused).startswith("2 of the pipelines' files were refused")


def test_a_folder_without_mistakes_refuses_nothing(tmp_path: Path) -> None:
    """There is no error to raise."""
    write(tmp_path, "one", GOOD.format(name="one"))
    assert catalog.load(tmp_path).refused() is None


def test_an_unknown_pipeline_lists_the_known_ones(tmp_path: Path) -> None:
    """Asking for a pipeline that is not there is an error of exit code 2 that names those that are."""
    write(tmp_path, "one", GOOD.format(name="one"))
    with pytest.raises(UnknownPipelineError, match="one") as caught:
        catalog.load(tmp_path)["two"]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 65, "é", "a\n"])
def test_names_that_could_leave_a_folder_are_refused(name: str) -> None:
    """Only short names of harmless characters become folders and tables."""
    with pytest.raises(BadNameError):
        check_name("pipeline", name)


@pytest.mark.parametrize("name", ["x", "x" * 249, "a.b-c_D9", "...", "orders." * 20])
def test_a_topic_may_have_any_name_that_kafka_allows(tmp_path: Path, settings: Settings, name: str) -> None:
    """Up to 249 characters, as brokers have it: such a topic is declared, and has its archive and report in
    folders of its name.
    """
    write(tmp_path, "one", GOOD.format(name="one").replace('Topic("trades"', f'Topic("{name}"'))
    found = catalog.load(tmp_path)
    assert found.errors == {}
    assert found["one"].source.name == name
    assert archive_url(settings, name).endswith(f"/archive/{name}")
    assert report_path(settings, name).name == f"{name}.json"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 250, "é", "a\n"])
def test_a_topic_that_kafka_refuses_is_refused(tmp_path: Path, name: str) -> None:
    """With Kafka's rule, wherever a topic is named."""
    with pytest.raises(BadTopicNameError, match="Kafka allows 1 to 249"):
        check_topic(name)
    path = write(tmp_path, "one", GOOD.format(name="one").replace('Topic("trades"', f"Topic({name!r}"))
    assert "is not 1 to 249 of" in str(catalog.load(tmp_path).errors[str(path)])


def test_archiving_a_topic_changes_no_query() -> None:
    """What a Spark checkpoint belongs to is told by the topic's text: a topic that is archived from now on
    keeps its streams' state.
    """
    assert repr(Topic("t", schema="ts timestamp", archive=True)) == repr(Topic("t", schema="ts timestamp"))


@pytest.mark.parametrize(
    "column",
    [
        "at timestamp_ntz",
        "extra variant",
        "ask double COMMENT 'dollars, and cents'",
        "`the ask` double NOT NULL",
        "ask: decimal(10, 2)",
        "took interval day to second",
        "bids array<struct<price: double, `venue``s`: string>>",
        "name string collate UNICODE_CI",
    ],
)
def test_what_spark_reads_loads(tmp_path: Path, column: str) -> None:
    """Any column that Spark can read out of a record may be declared."""
    write(tmp_path, "one", GOOD.format(name="one").replace("ask double", column))
    assert catalog.load(tmp_path).errors == {}


@given(
    st.integers(0, 10_000), st.sampled_from(["millisecond", "second", "minute", "hour", "day"]), st.booleans()
)
def test_durations_are_read_as_written(number: int, unit: str, plural: bool) -> None:
    """A number and a unit, singular or plural, is that long."""
    assert parse_duration(f"{number} {unit}{'s' if plural else ''}") == timedelta(**{unit + "s": number})


JOINED = """
from hindcast import Lookup, Metadata, Mode, Table, Topic, pipeline

@pipeline(
    source=Topic("views", schema="user string, ts timestamp", key="user"),
    joined=[Topic("searches", schema="user string, at timestamp", key="user", event_time="at"), Lookup("countries", 3)],
    event_time="ts", watermark="10 seconds", sink=Table("seen", keys=["user"]), version=1, re_execute=True, shards=2,
)
def seen(views, searches, countries):
    return views
"""


def test_partitions_are_numbered_across_the_topics(tmp_path: Path) -> None:
    """A place is said by its topic; a table that is joined has none."""
    write(tmp_path, "seen", JOINED)
    (pipeline,) = catalog.load(tmp_path).values()
    assert [topic.name for topic in pipeline.topics] == ["views", "searches"]
    assert [pipeline.event_time_of(topic) for topic in pipeline.topics] == ["ts", "at"]
    assert (pipeline.place(2), pipeline.place(TOPIC_STRIDE + 3)) == ("views/2", "searches/3")


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ('"searches"', '"views"', "named twice"),
        ('"at"', '"ts"', "'ts' is not a timestamp"),
        ('at timestamp", key="user"', 'at timestamp"', "each topic must be partitioned by the key"),
        ('keys=["user"]', "keys=[]", "must contain the topic's key"),
        ('keys=["user"]', "keys=[], mode=Mode.UPSERT", "an upsert table needs keys"),
        ('"countries"', '"coun tries"', "the lookup's name 'coun tries'"),
    ],
)
def test_a_wrong_join_is_refused(tmp_path: Path, was: str, becomes: str, says: str) -> None:
    """Each mistake is named."""
    assert was in JOINED
    path = write(tmp_path, "seen", JOINED.replace(was, becomes))
    assert says in str(catalog.load(tmp_path).errors[str(path)])


FEED = """
from hindcast import Metadata, Mode, Table, Topic, Window, pipeline

@pipeline(
    source=Topic("customers", schema="id string, ts timestamp", key="id", metadata=["headers"], tombstones=True),
    event_time="ts", watermark="10 seconds", version=1,
    sink=Table("newest", keys=["id"], mode="upsert", deleted="gone"),
)
def newest(customers):
    return customers
"""


def test_the_function_is_given_what_it_asks_for(tmp_path: Path) -> None:
    """A tombstone is nothing without its key."""
    write(tmp_path, "newest", FEED)
    (pipeline,) = catalog.load(tmp_path).values()
    assert pipeline.source.metadata == (Metadata.HEADERS,)
    assert pipeline.source.record_columns == ("_key", "_headers", "_tombstone")
    assert Topic("t", "ts timestamp").record_columns == ()
    assert Topic("t", "ts timestamp", metadata=["key"]).record_columns == ("_key",)


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ('["headers"]', '["headers", "offset"]', "is key or headers, not offset"),
        ('["headers"]', '"headers"', "source.metadata 'headers' is not a list of key and headers"),
        ("tombstones=True", "tombstones=1", "source.tombstones 1 is not True or False"),
        ("version=1,", 'version=1, window=Window("5 seconds"),', "has no event time"),
        ("id string, ts", "id string, _tombstone boolean, ts", "reserved columns ['_tombstone']"),
        ('mode="upsert", ', "", "only an upsert deletes rows"),
        ('"gone"', '"id"', "the table lacks 'id'"),
        ('"gone"', "True", "sink.deleted True is not a column's name"),
    ],
)
def test_a_wrong_change_feed_is_refused(tmp_path: Path, was: str, becomes: str, says: str) -> None:
    """Each mistake is named."""
    assert was in FEED
    path = write(tmp_path, "newest", FEED.replace(was, becomes))
    assert says in str(catalog.load(tmp_path).errors[str(path)])


SERVED = "from hindcast import Served\n" + GOOD.format(name="one").replace(
    'keys=["window", "ticker"]', 'keys=["window", "ticker"], served=SERVED'
)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("True", "sink.served True is not a Served"),
        ('Served(partition_by="day")', "sink.served.partition_by 'day' is not a list of columns"),
        ('Served(comments=["day"])', "is not a dictionary of columns and texts"),
        ('Served(properties={"delta.appendOnly": "true"})', "the property delta.appendOnly would keep"),
    ],
)
def test_a_wrong_served_table_is_refused(tmp_path: Path, declared: str, says: str) -> None:
    """Each mistake is named."""
    path = write(tmp_path, "one", SERVED.replace("SERVED", declared))
    assert says in str(catalog.load(tmp_path).errors[str(path)])


def test_a_served_table_of_columns_that_the_result_lacks_is_refused(tmp_path: Path) -> None:
    """And one that is partitioned by what may not name a partition."""
    declared = 'Served(partition_by=["day", "window", "no"], comments={"nor": "x"})'
    write(tmp_path, "one", SERVED.replace("SERVED", declared))
    pipeline = catalog.load(tmp_path)["one"]
    types = {"window": "struct<start:timestamp,end:timestamp>", "day": "date"}
    with pytest.raises(PipelineMistakesError) as caught:
        check_served_columns(pipeline, types)
    said = [str(error) for error in caught.value.errors]
    assert len(said) == 3
    assert "partitioned by 'window'" in said[0] and "'no'" in said[1] and "'nor'" in said[2]
    check_served_columns(pipeline, {"window": "int", "day": "date", "no": "string", "nor": "double"})


def test_a_start_is_a_word_a_moment_or_offsets() -> None:
    """Anything else is refused, with the forms that there are."""
    assert parse_start("latest") == "latest"
    assert parse_start("2026-01-05T12:00:00+00:00") == datetime(2026, 1, 5, 12, tzinfo=UTC)
    assert parse_start('{"0": 7, "1": 9}') == {0: 7, 1: 9}
    with pytest.raises(ValueError, match="is none of"):
        parse_start('{"0": "many"}')
