"""Words, spoken sentences and the lines of an access log."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from hindcast_sandbox.generators.record import Record
from hindcast_sandbox.generators.sentences import SENTENCES, SPEAKERS, sentences
from hindcast_sandbox.generators.web_log import CONTENT, DECORATION, ODD, POISON, clf_time, web_log
from hindcast_sandbox.generators.words import words

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
MANY = 30_000
#: Strict but for the request, which may hold anything: the status and the bytes after its last quote end the
#: line.
CLF = re.compile(
    rb"(\S+) - (\S+) \[(\d\d/(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)/\d{4}:[0-2]\d:[0-5]\d:[0-5]\d [+-]\d{4})\]"
    rb' "(\S+ .+)" ([1-5]\d\d) (\d+|-)'
)


def _rows(records: list[Record]) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in records if not record.poison]


def test_words_are_zipf_like() -> None:
    """The commonest word is *the*; the tenth comes less than a third as often, and half of the words together
    less than a third.
    """
    counts = Counter(row["word"] for row in _rows(list(islice(words(7, 2000.0, START), MANY))))
    ranked = [count for _, count in counts.most_common()]
    assert counts.most_common(1)[0][0] == "the"
    assert ranked[9] < ranked[0] / 3
    assert sum(ranked[len(ranked) // 2 :]) < sum(ranked) / 3
    assert len(ranked) > 80
    assert all(re.fullmatch("[a-z]+", word) for word in counts)


def test_each_speaker_speaks_whole_sentences_in_order() -> None:
    """A speaker's good words are numbered without a gap, also through poison, and make up the sentences, each
    ended by a full stop.
    """
    spoken: dict[str, list[dict[str, Any]]] = defaultdict(list)
    records = list(islice(sentences(7, 2000.0, START), MANY))
    assert any(record.poison for record in records)
    for row in _rows(records):
        spoken[row["speaker"]].append(row)
    assert spoken.keys() == set(SPEAKERS)
    for rows in spoken.values():
        assert [row["seq"] for row in rows] == list(range(len(rows)))
        said = re.findall(r"[^.]+\.", " ".join(row["word"] for row in rows))
        assert {sentence.strip() for sentence in said} == set(SENTENCES)


def test_every_sentence_has_one_full_stop_at_its_end() -> None:
    """Else the words of a sentence could not be told by it."""
    assert all(sentence.count(".") == 1 and sentence.endswith(".") for sentence in SENTENCES)


def test_each_line_is_a_line_of_the_common_log_format_unless_it_is_poison() -> None:
    """A strict expression reads every good line, also the odd ones, and the host in it is the key; it reads
    no poison but far times.
    """
    good, far = 0, 0
    for record in islice(web_log(7, 2000.0, START), MANY):
        found = CLF.fullmatch(record.value or b"")
        if record.poison:
            assert bool(found) == (record.poison == "far future")
            far += bool(found)
        else:
            assert found, record.value
            assert found[1] == record.key
            good += 1
    assert good > 0.99 * MANY
    assert far


def test_the_log_is_as_dirty_as_real_ones() -> None:
    """Each odd request comes, some lines have no number of bytes, and some are not UTF-8; the status is
    always a number.
    """
    records = [record for record in islice(web_log(7, 2000.0, START), MANY) if not record.poison]
    found = [match for record in records if (match := CLF.fullmatch(record.value or b""))]
    requests = Counter(match[4] for match in found)
    assert set(ODD.values()) <= requests.keys()
    plain = {f"GET {path} HTTP/1.0".encode() for path in (*CONTENT, *DECORATION)}
    assert requests.keys() == plain | set(ODD.values())
    assert 0.02 < sum(match[4] in ODD.values() for match in found) / len(found) < 0.04
    assert 0.05 < sum(match[6] == b"-" for match in found) / len(found) < 0.15
    not_utf8 = [record for record in records if b"\xe9" in (record.value or b"")]
    assert not_utf8
    assert {match[5] for match in found} == {b"200", b"302", b"304", b"403", b"404", b"500"}


def test_the_times_of_the_log_are_in_two_zones_and_name_the_same_instants() -> None:
    """Read with its zone, the time of each row that is not late is the second at which it is due; without it,
    it would be hours off.
    """
    zones = set()
    for record in islice(web_log(7, 2000.0, START), 5000):
        if record.poison or record.late:
            continue
        found = CLF.fullmatch(record.value or b"")
        assert found
        instant = datetime.strptime(found[3].decode(), "%d/%b/%Y:%H:%M:%S %z")
        zones.add(instant.utcoffset())
        assert instant == (START + timedelta(seconds=record.due_seconds)).replace(microsecond=0)
    assert zones == {timedelta(0), timedelta(hours=-7)}


def test_the_form_of_a_time() -> None:
    """The time of the format's own example."""
    assert clf_time(datetime.fromisoformat("2000-10-10T13:55:36-07:00")) == "10/Oct/2000:13:55:36 -0700"


def test_every_kind_of_poison_comes() -> None:
    """A long log has lines of every reason."""
    found = {record.poison for record in islice(web_log(7, 2000.0, START), 2 * MANY) if record.poison}
    assert found == POISON.keys()
