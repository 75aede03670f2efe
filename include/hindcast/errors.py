"""Everything Hindcast raises on purpose.

All errors have one root. The docstring of a class is its message: it says what happened, to what, and what to
do next. The keyword arguments of the constructor fill in its fields.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class HindcastError(Exception):
    """Hindcast could not continue: {reason}."""

    exit_code = 1

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        template = inspect.cleandoc(type(self).__doc__ or "").replace("\n", " ")
        super().__init__(template.format_map(_Blank(fields)))


class _Blank(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return f"<{key}>"


class BadInputError(HindcastError):
    """{problem}. {cure}"""

    exit_code = 2


class PipelineError(BadInputError):
    """{file}:{line}: pipeline {pipeline}: {problem}. Write it like this: {form}"""


class PipelineMistakesError(PipelineError):
    """{count} mistakes in {file}: {problems}"""

    def __init__(self, errors: Sequence[PipelineError]) -> None:
        self.errors = tuple(errors)
        problems = "".join(f"\n- {error}" for error in errors)
        first = errors[0].fields
        place = {name: first[name] for name in ("file", "line", "pipeline")}
        super().__init__(count=len(errors), problems=problems, **place)


class PipelinesRefusedError(BadInputError):
    """{count} of the pipelines' files were refused; the other pipelines keep running. {problems}"""


class MistakesFoundError(BadInputError):
    """{count} mistakes in the files of pipelines: the list says which. Correct them before a stream meets
    them.
    """


class UnknownNameError(BadInputError):
    """There is no {what} named {name}. {hint}"""


class NotConfirmedError(BadInputError):
    """{action} needs a yes, and there is no terminal to ask on. Nothing has changed. Add --yes (-y) to do it;
    --dry-run says what would happen.
    """


class WaitedInVainError(HindcastError):
    """{what} did not come within {seconds:g} s: {seen}. {cure}"""


class SettingsRefusedError(BadInputError):
    """{count} of the settings are wrong: {problems}"""


class UnknownPipelineError(BadInputError):
    """There is no pipeline named {pipeline}; the ones that load are: {known}. `hindcast pipelines` lists
    them.
    """


class UnknownVersionError(BadInputError):
    """No file declares version {version} of {pipeline}; there are: {known}. Put its file back, or name one of
    those.
    """


class VersionRefusedError(BadInputError):
    """{pipeline}: version {version} is not {action}: {problem}. Nothing has changed. {cure}"""


class BadNameError(BadInputError):
    """{what} {name!r} is not a valid name. Use 1 to 64 of the characters A-Z a-z 0-9 . _ -"""


class BadTopicNameError(BadNameError):
    """The topic {name!r} is not a valid name. Kafka allows 1 to 249 of the characters A-Z a-z 0-9 . _ -, but
    neither . nor .. alone.
    """


class BadRangeError(BadInputError):
    """The range {range} cannot be replayed: {problem}. {cure}"""


class VersionLostError(BadInputError):
    """The table {table} cannot be judged as it was: its version {version} is gone. The log of a table and the
    files that a compaction replaced are kept for a limited time. Judge more often than that, begin where an
    earlier replay ended (`hindcast runs`), or judge from the beginning (`--all`).
    """


class ProofLostError(BadInputError):
    """The run {run_id} cannot be judged: its range begins with the state that the run {proof} left, and that
    was deleted. Replay the range again: it begins with the nearest state that is kept.
    """


class ErasedRecordsError(BadInputError):
    """The run {run_id} of {pipeline} cannot be judged: {count} of its records were erased from archives after
    version {version} had read them, the first at {first}. What came of them cannot be told from a fault.
    Judge a range after them.
    """


class NothingLateError(HindcastError):
    """No late row of {pipeline} waits for a correction: the windows of each were corrected after it came, or
    are still open.
    """

    exit_code = 0


class LateForGoodError(NothingLateError):
    """No late row of {pipeline} waits for a correction that can still be made: {problem}."""


class NothingToReplayError(HindcastError):
    """{pipeline}: {range} holds nothing to replay: {problem}."""

    exit_code = 0


class CorrectionRefusedError(BadInputError):
    """Readers do not get the answer of run {run_id}: {problem}. Nothing has changed. {cure}"""


class ServedTableRefusedError(BadInputError):
    """The served table of {pipeline} stays as it is: {problem}. {cure}"""


class RegistrationRefusedError(BadInputError):
    """The served table is not registered as {name}: {problem}. {cure}"""


class UnknownTopicError(BadInputError):
    """The brokers at {servers} show this client no topic named {topic}. Create it, correct the pipeline's
    Topic, or let the account describe it; `hindcast doctor` shows which brokers are meant.
    """


class BrokerUnavailableError(HindcastError):
    """The brokers at {servers} did not answer about {topic} ({reason}). Check that they run: `hindcast
    status`.
    """

    exit_code = 75


class BrokerRefusesError(BrokerUnavailableError):
    """The brokers at {servers} refuse this client, which asked about {topic} ({reason}). Check its account,
    its certificates and what it may do: the settings HINDCAST_KAFKA_*, docs/how-to/secured-kafka.md.
    """


class RegistryUnavailableError(HindcastError):
    """The schema registry at {url} was {asked}, and did not do it: {reason}. Check that it runs, and the
    address and account in HINDCAST_SCHEMA_REGISTRY; the stream tries again by itself.
    """


class RangeNotYetConsumedError(HindcastError):
    """The stream of {pipeline} has not committed the whole range yet ({problem}). Try again once it has
    caught up: `hindcast checkpoints` shows how far it is.
    """

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: a retry may succeed

    @property
    def awaited(self) -> Any:
        """What has to happen first, a :class:`hindcast.replay.wait_for_stream.Awaited`; None if that is not
        known.
        """
        return self.fields.get("awaited")


class LettersUnprovenError(HindcastError):
    """Nothing says whether the run {run_id} of repaired letters of {pipeline} was sent: it was cut short, and
    the topic {marks} that held the proof was deleted since. Nothing was sent. Search the letters' topics for
    records with the header {header}={run_id}, then `hindcast deadletters settle {pipeline} {run_id}` with
    --sent or --not-sent. Its letters: {letters}.
    """

    exit_code = 2


class OffsetsLostError(HindcastError):
    """{topic}-{partition}: offsets {start} to {end} are needed by {pipeline}/{shard}, but {problem}. The
    shard has stopped and nothing was skipped. Restore the topic's data, or accept the gap with a new version
    of the pipeline that starts later.
    """


class RaisingRecordsError(HindcastError):
    """{pipeline}/{shard}: the function raises {error} on more records from {start} to {end} than may be left
    out: {limit} an hour, and {recent} were in the last hour. The shard has stopped and nothing was skipped.
    Mend the function under a new version, or, if the records are to blame, raise
    HINDCAST_RAISING_RECORDS_PER_HOUR.
    """


class LeaseLostError(HindcastError):
    """{owner} no longer owns {lease} (epoch {epoch}): {reason}. Its queries stop; the present owner of the
    lease continues.
    """


class LeaseSecondsDifferError(BadInputError):
    """A lease of this worker would last {mine} seconds, but {owner} of the fleet {fleet} lives, or was killed
    a moment ago, and has leases of {found}. Workers that share leases must agree, or two would own a shard;
    this one takes no slot and stops. Set HINDCAST_LEASE_SECONDS to {found}, or stop all workers before you
    start any with {mine}.
    """


class FenceMovedError(HindcastError):
    """{table} records {recorded} for {app}, where {expected} was expected: another writer committed in
    between. Nothing was written; read again and decide again.
    """


class OffsetGapError(HindcastError):
    """{pipeline}/{shard}: batch {batch} starts at {start}, but the sink was last committed up to {recorded}.
    Writing it would lose or repeat rows, so the shard has stopped. {cure}
    """


class DoubledKeyError(HindcastError):
    """Two rows of batch {batch} of {pipeline} have the same keys ({keys}), so which of them the table should
    hold is not known. Nothing was written. Let the transformation give one row a key and batch, or name more
    keys.
    """


class PipelineExitedError(HindcastError):
    """{pipeline}: {function} called sys.exit({code}), which would end a process that has other pipelines. Let
    it raise an error that says what is wrong.
    """


class JvmBrokenError(HindcastError):
    """The JVM of this worker cannot load one of its classes any more ({reason}): a disk was full, say, when
    the class unpacked its library. No retry in this process would help, so the worker ends. `supervise`
    starts another one.
    """


class LookupUnavailableError(BadInputError):
    """The lookup {lookup} cannot be read in version {version} from {url}: {problem}. {cure}"""


class ReshardRefusedError(HindcastError):
    """{pipeline} is not resharded: the state of its operators depends on which rows came together in a batch,
    and other shards have other batches. Nothing has changed. Raise the pipeline's version, with other shards
    and a new sink table: it starts again from the topic.
    """


class SinkSharedError(HindcastError):
    """{found} has written to {table} as {app} in epoch {epoch}, which is {worker}'s: a fleet with leases of
    its own writes there, too. Nothing was written. Stop one of the two, or give each its own
    HINDCAST_TABLES_URL.
    """


class SinkCommitsLostError(HindcastError):
    """{pipeline}/{shard}: the sink {table} ends at version {found}, but the ledger knows of a batch in
    version {known}. Writing would take the place of commits that were lost, so the shard has stopped. {cure}
    """


class ForeignStreamError(BadInputError):
    """{pipeline} is a stream that others run: {problem}. {cure}"""


class CheckpointRefusedError(HindcastError):
    """{pipeline}/{shard}: the Spark checkpoint at {path} cannot be used: {problem}. {cure}"""


class CheckpointDamagedError(CheckpointRefusedError):
    """{pipeline}/{shard}: the Spark checkpoint at {path} is damaged: {problem}. {cure}"""


class SchemaVersionError(HindcastError):
    """The table {table} is of schema version {found}, this Hindcast reads {supported}. {cure}"""


class StoreUnavailableError(HindcastError):
    """The table {table} could not be {action}: {reason}. Check that the store is reachable and its disk is
    not full.
    """


class CommitConflictError(HindcastError):
    """Another writer committed to {table} first; nothing of this commit was written. Read again and decide
    again.
    """


class CommitUnknownError(HindcastError):
    """A commit to {table} ended without an answer ({reason}): it may have been written. Read the table before
    any retry.
    """


class PrerequisiteError(HindcastError):
    """{what} is missing: {problem}. {cure}"""

    exit_code = 2


class ScratchRefusedError(HindcastError):
    """Recorded batches cannot be run again in {url}: that store does not keep the times that files are given,
    and they are the batches' order. Set HINDCAST_SCRATCH_URL to a folder that the driver and every executor
    see, or to one of HDFS.
    """

    exit_code = 2


class ServiceError(HindcastError):
    """{service} {problem}. Its log is {log}."""


class ReplayFailedError(HindcastError):
    """The replay {run_id} of {pipeline} failed: {reason}. {cure}"""


class RewindRefusedError(BadInputError):
    """{pipeline} cannot be rewound to {to}: {problem}. Nothing was changed. {cure}"""


class UnknownArchiveError(BadInputError):
    """The topic {topic} has no archive. `hindcast archive list` lists those there are; `hindcast archive run
    {topic}` makes one.
    """


class ArchiveRefusedError(HindcastError):
    """The archive of {topic} cannot continue: {problem}. Nothing was written. {cure}"""

    exit_code = 2  # a person must decide; a retry would find the same


class ArchiveFailedError(HindcastError):
    """{action} {topic} failed: {reason}. Nothing of the step that failed was kept; the same command again
    continues from there.
    """


class ArchiveDamagedError(HindcastError):
    """The archive of {topic} holds {found} records, its commits wrote {known}: another program changed the
    table {table}. Restore it, or move it away to do without it.
    """


class ArchiveDiffersError(HindcastError):
    """The archive of {topic} differs from the topic in {differences} of {compared} records, e.g. {sample}.
    {cure}
    """

    exit_code = 3


class TryLaterError(HindcastError):
    """{reason}"""

    exit_code = 75


class ChildFailedError(HindcastError):
    """{program} ended with exit code {code}: {reason}. The lines above it say more."""


class UnknownRunError(BadInputError):
    """No replay of the id {run_id} has succeeded. `hindcast runs` lists them; `hindcast replay` makes one."""


class TrialFailedError(HindcastError):
    """The stream of {pipelines} differs from its batch over the same records: the list says how. A clock, a
    random value or an order that is not fixed does that; so does a result that depends on which records come
    together, which is declared by `re_execute=True`.
    """

    exit_code = 3


class VerdictFailedError(HindcastError):
    """{pipeline}, run {run_id}: {unexplained} differences are unexplained and captured is {captured}:
    {failed}. `hindcast verdicts --run {run_id} --differences` names the rows.
    """

    exit_code = 3


#: After it come the places in a program at which an error was raised, in indented lines; then the error
#: itself.
_TRACEBACK = "Traceback (most recent call last):"
#: After it comes Spark's description of the query that failed.
_QUERY = "=== Streaming Query ==="
_CAUSE = "Caused by: "


def together(errors: Sequence[PipelineError]) -> PipelineError:
    """One error that lists all of these; if there is only one, that one."""
    if len(errors) == 1:
        return errors[0]
    return PipelineMistakesError(errors)


#: How a line begins that names an error: Spark's condition, or the class of the error.
_CONDITION = re.compile(r"(?:[\w.$]+: )?\[([A-Z][A-Z0-9_.]+)\]")
_CLASS = re.compile(r"(?:[\w$]+\.)*([A-Za-z_]\w*)(?::|$)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def name_of_error(error: BaseException, file: str = "") -> str:
    """The class of the innermost error, and its place in Python code: ``KeyError (orders.py, line 31)``.

    The message is left out: it may hold data.

    :param file: the place in this file's folder is named, if the error went through it
    """
    text = innermost(error)
    found = _CONDITION.match(text) or _CLASS.match(text)
    name = type(error).__name__
    if found:
        name = found[1]
    traceback, lines = _last_traceback(error)
    frames = []
    if traceback:
        frames = _FRAME.findall(lines)
    own = [frame for frame in frames if file and Path(frame[0]).parent == Path(file).parent]
    for path, line in reversed(own or frames):
        return f"{name} ({Path(path).name}, line {line})"
    return name


#: What Spark puts after the traceback of a function.
_AFTER_TRACEBACK = ("\tat ", " SQLSTATE: ", "SQLSTATE: ", "Driver stacktrace:")
#: A traceback is cut after so many characters.
_MOST_OF_TRACEBACK = 4_000


def traceback_of(error: BaseException) -> str:
    """The innermost error in full: its traceback in Python code, or its stack in Java, as far as it is of
    use.
    """
    traceback, text = _last_traceback(error)
    if not traceback:
        _, _, text = text.rpartition(_CAUSE)
        return text.strip()[:_MOST_OF_TRACEBACK]
    lines = [traceback]
    for line in text.strip("\n").splitlines():
        if line.startswith(_AFTER_TRACEBACK):
            break
        lines.append(line)
    return "\n".join(lines).strip()[:_MOST_OF_TRACEBACK]


def _last_traceback(error: BaseException) -> tuple[str, str]:
    """The words before the error's last traceback in Python code, and what comes after them. Without a
    traceback: no words, and the whole text. Spark's description of the query is left out.
    """
    before_query, _, _ = str(error).partition(_QUERY)
    _, traceback, text = before_query.rpartition(_TRACEBACK)
    return traceback, text


def innermost(error: BaseException) -> str:
    """An error in one line: its innermost cause, because the outermost only says which call failed.

    The innermost cause of a Java error is its last ``Caused by``. A Python error that went through the JVM (a
    sink's, or that of a user's function) is the text after the last traceback.
    """
    traceback, text = _last_traceback(error)
    lines = []
    for line in text.strip("\n").splitlines():
        frame = traceback and line.startswith(" ")
        if line.strip() and not frame:
            lines.append(line)
    for line in reversed(lines):
        if line.startswith(_CAUSE):
            return line.removeprefix(_CAUSE).strip()
    if lines:
        return lines[0].strip()
    return type(error).__name__
