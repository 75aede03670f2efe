"""What became of the mutants, and why those that survived do no harm.

A mutant is the code with one small change. Tests catch it if one of them fails. A survivor is a hole in the
tests, dead code, or a change that changes nothing that counts. The last kind is recorded in the files of
``survivors/``, one for each folder of the library, with its reason, by the function and by the text of the
line before and after, so that a record outlives changes elsewhere.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

RECORDS = Path(__file__).with_name("survivors")
#: A string literal of one line. Texts in triple quotes are never mutated.
_LITERAL = re.compile(r"""[rRbBfFuU]{0,2}("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
#: Two words with a space between them.
_WORDS = re.compile(r"\w\S*\s+\S*\w")


class Outcome(StrEnum):
    """What became of a mutant. One that no test reaches survives, too; one that could not be tried proves
    nothing.
    """

    CAUGHT = "caught"
    SURVIVED = "survived"
    UNREACHED = "reached by no test"
    UNTRIED = "not tried"


SURVIVORS = frozenset({Outcome.SURVIVED, Outcome.UNREACHED})


@dataclass(frozen=True)
class Mutant:
    """One changed line of a function: ``module`` is the path below include/hindcast without its ending,
    ``was`` and ``becomes`` are the line's text. A line that is added or taken away has an empty text.
    """

    module: str
    function: str
    was: str
    becomes: str
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why some survivors do no harm. An empty field says nothing of them: without ``becomes`` all that a line
    may become is meant, and without ``was`` the whole function.
    """

    why: str
    module: str = ""
    function: str = ""
    was: str = ""
    becomes: str | None = None
    words: bool = False

    def holds(self, mutant: Mutant) -> bool:
        """Whether it is the reason of this survivor."""
        if self.words and not only_words(mutant.was, mutant.becomes):
            return False
        if self.becomes is not None and self.becomes != mutant.becomes:
            return False
        named = ((self.module, mutant.module), (self.function, mutant.function), (self.was, mutant.was))
        return all(mine in {"", theirs} for mine, theirs in named)

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.module or "every module", self.function) if part)
        if self.becomes is not None:
            return f"{place}: {self.was} -> {self.becomes}"
        return f"{place}: {self.was}" if self.was else place


def read_all(folder: Path = RECORDS) -> list[Reason]:
    """The reasons of all records of a folder.

    :raises ValueError: if an entry says nothing of why, or of which mutants
    """
    return [reason for record in sorted(folder.glob("*.toml")) for reason in read(record)]


def read(record: Path) -> list[Reason]:
    """The reasons of one record; one that names several changes of a line becomes as many.

    :raises ValueError: if an entry says nothing of why, or of which mutants
    """
    reasons = []
    for entry in tomllib.loads(record.read_text()).get("survivor", []):
        changes = entry.pop("becomes", None)
        if isinstance(changes, str):
            changes = [changes]
        for change in changes if changes is not None else [None]:
            reason = Reason(**entry, becomes=change)
            if not reason.why.strip() or not (reason.words or (reason.module and reason.function)):
                raise ValueError(
                    f"{record}: an entry needs `why`, and `module` and `function` or `words`: {entry}"
                )
            reasons.append(reason)
    return reasons


def only_words(was: str, becomes: str) -> bool:
    """Whether the two texts differ in nothing but the words of a sentence: a literal of several words."""
    before, after = list(_LITERAL.finditer(was)), list(_LITERAL.finditer(becomes))
    if _LITERAL.sub('""', was) != _LITERAL.sub('""', becomes) or was == becomes:
        return False
    return all(_WORDS.search(one[1]) for one, other in zip(before, after, strict=True) if one[0] != other[0])


@dataclass(frozen=True)
class Verdict:
    """The mutants of some modules beside the recorded reasons."""

    mutants: Sequence[Mutant]
    reasons: Sequence[Reason]
    whole: bool  # all modules were examined, so that a reason that names no module must have held

    @property
    def survivors(self) -> list[tuple[Mutant, Reason | None]]:
        """Each survivor with the first reason that holds for it."""
        found = [mutant for mutant in self.mutants if mutant.outcome in SURVIVORS]
        return [
            (mutant, next((reason for reason in self.reasons if reason.holds(mutant)), None))
            for mutant in found
        ]

    @property
    def unexplained(self) -> list[Mutant]:
        return list(dict.fromkeys(mutant for mutant, reason in self.survivors if reason is None))

    @property
    def untried(self) -> list[Mutant]:
        return [mutant for mutant in self.mutants if mutant.outcome is Outcome.UNTRIED]

    @property
    def stale(self) -> list[Reason]:
        """Reasons of mutants that are caught now, or gone. A reason of another module is not judged."""
        examined = {mutant.module for mutant in self.mutants}
        judged = [
            reason
            for reason in self.reasons
            if reason.module in examined or (self.whole and not reason.module)
        ]
        survivors = [mutant for mutant, _ in self.survivors]
        return [reason for reason in judged if not any(reason.holds(mutant) for mutant in survivors)]

    @property
    def exit_code(self) -> int:
        return 1 if not self.mutants or self.unexplained or self.untried or self.stale else 0

    def lines(self) -> Iterator[str]:
        """The report."""
        yield from self._table()
        explained = [(mutant, reason) for mutant, reason in self.survivors if reason is not None]
        for why, group in _by_reason(explained).items():
            yield f"\n{why}"
            yield from (f"  {place(mutant)}" for mutant in group)
        if self.unexplained:
            yield f"\nNot caught, and without a reason. Write the test that catches it, or record in {RECORDS.name}/ why it does no harm:"
            yield from (f"\n# {mutant.outcome}\n{as_entry(mutant)}" for mutant in self.unexplained)
        if self.stale:
            yield f"\nCaught now, or gone: delete these from {RECORDS.name}/."
            yield from (f"  {reason}" for reason in self.stale)
        if self.untried:
            yield "\nCould not be tried: run these modules again."
            yield from (f"  {place(mutant)}" for mutant in self.untried)
        yield f"\nmutants: {_sum(self.mutants)}; {len(self.unexplained)} without a reason, {len(self.stale)} reasons without a survivor."

    def _table(self) -> Iterator[str]:
        for module in dict.fromkeys(mutant.module for mutant in self.mutants):
            yield f"  {module}: {_sum([mutant for mutant in self.mutants if mutant.module == module])}"


def place(mutant: Mutant) -> str:
    """The mutant in one line."""
    return f"{mutant.module}: {mutant.function}: {mutant.was or 'nothing'} -> {mutant.becomes or 'nothing'}"


def as_entry(mutant: Mutant) -> str:
    """The mutant as an entry of the record that lacks its reason. JSON's strings are TOML's."""
    fields = {
        "module": mutant.module,
        "function": mutant.function,
        "was": mutant.was,
        "becomes": mutant.becomes,
        "why": "",
    }
    return "[[survivor]]\n" + "\n".join(
        f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()
    )


def _by_reason(explained: Iterable[tuple[Mutant, Reason]]) -> dict[str, list[Mutant]]:
    groups: dict[str, list[Mutant]] = {}
    for mutant, reason in explained:
        groups.setdefault(reason.why, []).append(mutant)
    return groups


def _sum(mutants: Sequence[Mutant]) -> str:
    counts = Counter(mutant.outcome for mutant in mutants)
    survived = sum(counts[outcome] for outcome in SURVIVORS)
    return f"{len(mutants)} mutants, {counts[Outcome.CAUGHT]} caught, {survived} survived"
