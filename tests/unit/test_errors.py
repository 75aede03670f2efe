"""What is said of an error that Spark raised, in one line."""

from __future__ import annotations

import pytest

from hindcast.errors import innermost, name_of_error, traceback_of

PROXY = "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):"
QUERY = """
=== Streaming Query ===
Identifier: [id = 2a63351f, runId = daad73fb]
Current State: ACTIVE
"""
IN_A_SINK = f"""{PROXY}
  File "utils.py", line 163, in call
    self.func(DataFrame(jdf, wrapped_session_jdf), batch_id)
RuntimeError: a sink that fails
with two lines
{QUERY}"""
IN_A_FUNCTION = f"""{PROXY}
  File "dataframe.py", line 503, in collect
    sock_info = self._jdf.collectToPython()
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 3004, in read_udfs
    return work(row)
           ^^^^^^^^^
ZeroDivisionError: division by zero
{QUERY}"""
IN_JAVA = """An error occurred while calling o57.save.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.Job.run(Job.scala:1)
Caused by: java.util.concurrent.ExecutionException: wrapped
Caused by: java.io.IOException: No space left on device
\tat java.io.File.write(File.java:1)
"""
IN_A_SINK_WITH_JAVAS_STACK = (
    """Writing failed.
Caused by: py4j.Py4JException: """
    + IN_A_SINK.removesuffix(QUERY)
    + """
\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""
)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("[STATE_STORE_MISSING] It is gone.\nmore", "[STATE_STORE_MISSING] It is gone."),
        ("  indented", "indented"),
        (QUERY, "ValueError"),
        ("", "ValueError"),
        (IN_A_SINK, "RuntimeError: a sink that fails"),
        (IN_A_FUNCTION, "ZeroDivisionError: division by zero"),
        (IN_JAVA, "java.io.IOException: No space left on device"),
        (IN_A_SINK_WITH_JAVAS_STACK, "RuntimeError: a sink that fails"),
        ("Job aborted.\n" + "x" * 1000, "Job aborted."),
    ],
)
def test_the_cause_of_an_error_is_its_line(said: str, line: str) -> None:
    """Neither the call that failed, nor a traceback's first line, nor the query's description."""
    assert innermost(ValueError(said)) == line


IN_A_PIPELINE = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/srv/pipelines/orders.py", line 31, in ratio
    return json.loads(text)
  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode
    raise JSONDecodeError("Expecting value", s, err.value) from None
json.decoder.JSONDecodeError: Expecting value: Ann Lee, 5 High Street
"""
IN_SPARK = "Job aborted.\nCaused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division of 7 by zero."


@pytest.mark.parametrize(
    ("said", "file", "name"),
    [
        (IN_A_FUNCTION, "", "ZeroDivisionError (worker.py, line 3004)"),
        (IN_A_PIPELINE, "/srv/pipelines/orders.py", "JSONDecodeError (orders.py, line 31)"),
        (IN_A_PIPELINE, "/srv/pipelines/helper.py", "JSONDecodeError (orders.py, line 31)"),
        (IN_A_PIPELINE, "", "JSONDecodeError (decoder.py, line 355)"),
        (IN_A_PIPELINE, "/elsewhere/orders.py", "JSONDecodeError (decoder.py, line 355)"),
        (IN_SPARK, "/srv/pipelines/orders.py", "DIVIDE_BY_ZERO"),
        (IN_JAVA, "", "IOException"),
        ("Ann Lee is no number", "", "RuntimeError"),
        ("", "", "RuntimeError"),
    ],
)
def test_the_name_of_an_error_holds_no_data(said: str, file: str, name: str) -> None:
    """Its class, or Spark's condition, and its place in the pipeline's code; never its message."""
    assert name_of_error(RuntimeError(said), file) == name


def test_a_traceback_is_the_innermost_error_in_full() -> None:
    """Its frames in Python code, and nothing of what Spark says around it; of Java its last cause."""
    found = traceback_of(RuntimeError(IN_A_FUNCTION + "\n\tat org.apache.spark.Job.run(Job.scala:1)"))
    assert found.startswith('Traceback (most recent call last):\n  File "worker.py", line 3004, in read_udfs')
    assert found.endswith("ZeroDivisionError: division by zero")
    with_stack = IN_A_FUNCTION.removesuffix(QUERY) + " SQLSTATE: 38000\n\nDriver stacktrace:\nmore"
    assert traceback_of(RuntimeError(with_stack)) == found
    assert traceback_of(RuntimeError(IN_JAVA)).startswith(
        "java.io.IOException: No space left on device\n\tat "
    )
    assert len(traceback_of(RuntimeError("x" * 10_000))) == 4_000
