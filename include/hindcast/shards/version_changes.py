"""Change which versions of a pipeline are wanted: the active one, which readers get, and at most one beside it.

All of it is in the one row that says what is wanted of the pipeline (:mod:`hindcast.shards.active_version`), so each change is one
compare-and-swap, and whoever reads that row reads a consistent answer:

- *begin* puts a new version beside the active one, with its shards; it is ``CATCHING_UP``, then ``LIVE``;
- *promote* makes it the active one and leaves the old one beside it, ``WARM``: consumed as before, so that *back out* is one swap, too;
- *keep_warm* notes for how long the warm version was seen to be warm, and ends it once its time is over; its table stays, as readers may
  get older windows from it;
- *leave* and *remove* discard the version beside: first nobody wants its shards any more, then they are gone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hindcast.errors import UnknownPipelineError, VersionRefusedError
from hindcast.leases.lease import REMOVED, Lease
from hindcast.leases.store import LeaseStore, Snapshot, swap
from hindcast.partitions import Offsets
from hindcast.shards import resharding
from hindcast.shards.active_version import Rollout, rollouts
from hindcast.shards.pipeline_row import SHADOW, Change, ChangeKind, InactiveState, InactiveVersion, PipelineRow, ServedUntil, desired_key
from hindcast.tables.control_tables import utc_from_ms


class Versions:
    """Reads and changes which versions are wanted. Every refusal is decided on the very snapshot that would be changed."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store

    def of(self, name: str) -> Rollout:
        """:raises UnknownPipelineError: where nothing was ever wanted of it"""
        return _standing(self._store.read(), name)[1]

    def begin(self, name: str, beside: InactiveVersion, start: Offsets, *, columns_from: int, who: str = "") -> Rollout:
        """Put a version beside the active one, with its shards, in one commit.

        :param columns_from: the active version whose columns it was checked against
        :raises VersionRefusedError: where it is no newer than the active one, or one is beside it already
        """

        def decide(standing: Rollout, snapshot: Snapshot) -> tuple[Rollout, list[Lease]]:
            check_room(standing, beside.version)
            refused = Refusal(name, beside.version, "started")
            if standing.active != columns_from:
                raise refused(f"version {standing.active} became active meanwhile", "Start it again.")
            if resharding.of_version(snapshot.leases.values(), name, beside.version):
                raise refused("it has shards already", "Raise the version: a version is never used for something else.")
            change = _change(standing, ChangeKind.STARTED, beside.version, standing.active, who, offsets=start)
            first = resharding.first_generation(name, beside.version, beside.shards, start)
            return replace(standing, beside=beside, change=change), first

        return self._swap(name, decide)

    def note_caught_up(self, seen: Rollout) -> Rollout | None:
        """Say that the version beside has reached its topic's end; None where somebody else was faster."""

        def decide(standing: Rollout, _: Snapshot) -> tuple[Rollout, list[Lease]] | None:
            beside = standing.beside
            if beside is None or seen.beside is None or (beside.version, beside.state) != (seen.beside.version, InactiveState.CATCHING_UP):
                return None
            change = _change(standing, ChangeKind.CAUGHT_UP, beside.version, standing.active)
            return replace(standing, beside=replace(beside, state=InactiveState.LIVE), change=change), []

        return self._try(seen.pipeline, decide)

    def promote(
        self,
        name: str,
        version: int,
        tables: tuple[str, ...],
        *,
        warm_seconds: float,
        barrier: Offsets,
        since: str,
        who: str = "",
        despite: str = "",
    ) -> Rollout:
        """Make the version beside the active one: the swap by which readers switch.

        :param tables: what the version that is active now writes
        :param warm_seconds: for how long the old version is kept warm
        :param barrier: the offsets up to which the old version had read when the new one was found to have read as far
        :param since: the id of the change after which the version was proved: none may have come in between
        :param despite: why it is promoted although it was not proved; then no reshard has to end first
        :raises VersionRefusedError: where it is not beside the active one, something has changed since it was looked at, or a shard of
            either waits for its parents
        """

        def decide(standing: Rollout, snapshot: Snapshot) -> tuple[Rollout, list[Lease]]:
            beside = check_shadow(standing, version, "promoted")
            if not despite:
                check_no_reshard(standing, snapshot.leases.values())
            if standing.change is None or standing.change.id != since:
                raise Refusal(name, version, "promoted")("something changed while it was looked at", "See `hindcast versions`; try again.")
            change = _change(standing, ChangeKind.PROMOTED, version, version, who, despite=despite, offsets=barrier)
            old = InactiveVersion(
                version=standing.active,
                state=InactiveState.WARM,
                shards=standing.shards,
                tables=tables,
                until=change.at + timedelta(seconds=warm_seconds),
                earlier=standing.earlier,
            )
            return (
                replace(
                    standing,
                    active=version,
                    shards=beside.shards,
                    tables=beside.tables,
                    beside=old,
                    earlier=_joined(standing, beside.seam_ms),
                    change=change,
                ),
                [],
            )

        return self._swap(name, decide)

    def back_out(self, name: str, *, who: str = "", since: str = "") -> Rollout:
        """Make the warm version the active one again; the other goes on beside it.

        :param since: the id of the promotion that is to be undone; without it the last one is
        :raises VersionRefusedError: where no version is kept warm, or another change came after that promotion
        """

        def decide(standing: Rollout, _: Snapshot) -> tuple[Rollout, list[Lease]]:
            warm = standing.beside
            if warm is None or warm.state is not InactiveState.WARM or warm.leaving:
                problem = "no version before it is kept warm"
                cure = f"`hindcast versions --pipeline {name}` lists what there is; the old rules can be started as a new version."
                raise Refusal(name, standing.active, "backed out")(problem, cure)
            if since and (standing.change is None or standing.change.id != since):
                cure = "See `hindcast versions`; `hindcast back-out` undoes the last promotion, whichever that was."
                raise Refusal(name, standing.active, "backed out")("something changed since that promotion", cure)
            # What it lacks against the version that it goes back beside: whatever readers had from others while it was active.
            seam_ms = standing.earlier[-1].to_ms if standing.earlier else None
            newer = InactiveVersion(
                version=standing.active, state=InactiveState.LIVE, shards=standing.shards, tables=standing.tables, seam_ms=seam_ms
            )
            change = _change(standing, ChangeKind.BACKED_OUT, standing.active, warm.version, who)
            return (
                replace(
                    standing, active=warm.version, shards=warm.shards, tables=warm.tables, beside=newer, earlier=warm.earlier, change=change
                ),
                [],
            )

        return self._swap(name, decide)

    def keep_warm(self, seen: Rollout, seconds: float) -> Rollout | None:
        """Note that the warm version was seen for so long as it was in ``seen``, and end it where its time is over.

        :returns: None where there is none any more, or where somebody else has noted some of that time
        """

        def decide(standing: Rollout, _: Snapshot) -> tuple[Rollout, list[Lease]] | None:
            if standing.warm_sign is None or standing.warm_sign != seen.warm_sign:
                return None
            assert standing.beside is not None
            if seconds < standing.warm_seconds_left:
                return replace(standing, beside=replace(standing.beside, warmed_seconds=standing.beside.warmed_seconds + seconds)), []
            change = _change(standing, ChangeKind.RETIRED, standing.beside.version, standing.active)
            return replace(standing, beside=None, change=change), []

        return self._try(seen.pipeline, decide)

    def leave(self, name: str, version: int) -> Rollout:
        """Want nobody to consume the version beside any more: the first half of discarding it.

        :raises VersionRefusedError: where it is active, not there, or readers still get windows from it
        """

        def decide(standing: Rollout, _: Snapshot) -> tuple[Rollout, list[Lease]] | None:
            refused, beside = Refusal(name, version, "discarded"), standing.beside
            if version == standing.active:
                raise refused("it is the active one", f"`hindcast back-out {name}` returns to the one before, while that is kept warm.")
            if beside is None or beside.version != version:
                raise refused("it is not beside the active one", f"`hindcast versions --pipeline {name}` lists what there is.")
            if parts := [one.to_ms for one in standing.earlier if one.version == version]:
                raise refused(
                    f"readers get windows that end by {utc_from_ms(parts[-1]).isoformat()} from it",
                    "Keep it: nothing else holds those windows.",
                )
            return None if beside.leaving else (replace(standing, beside=replace(beside, leaving=True)), [])

        return self._try(name, decide) or self.of(name)

    def remove(self, name: str, version: int, *, who: str = "") -> Rollout | None:
        """Remove the version beside and its shards: the second half of discarding it; None where that is done already."""

        def decide(standing: Rollout, snapshot: Snapshot) -> tuple[Rollout, list[Lease]] | None:
            if standing.beside is None or standing.beside.version != version or not standing.beside.leaving:
                return None
            gone = [lease.evolve(state=REMOVED) for lease in resharding.of_version(snapshot.leases.values(), name, version)]
            change = _change(standing, ChangeKind.DISCARDED, version, standing.active, who)
            return replace(standing, beside=None, change=change), gone

        return self._try(name, decide)

    def _swap(self, name: str, decide: Callable[[Rollout, Snapshot], tuple[Rollout, list[Lease]]]) -> Rollout:
        found = self._try(name, decide)
        assert found is not None
        return found

    def _try(self, name: str, decide: Callable[[Rollout, Snapshot], tuple[Rollout, list[Lease]] | None]) -> Rollout | None:
        """Decide and commit once; the standing that was written, None where nothing had to be."""
        wrote: list[Rollout] = []
        token = uuid.uuid4().hex

        def once(snapshot: Snapshot) -> list[Lease]:
            row, standing = _standing(snapshot, name)
            if PipelineRow.of(row).written_by == token:
                return []  # an earlier commit of unknown outcome had landed
            decided = decide(standing, snapshot)
            wrote.clear()
            if decided is None:
                return []
            wrote.append(decided[0])
            return [decided[0].written(row, token), *decided[1]]

        swap(self._store, once)
        return wrote[-1] if wrote else None


def check_room(standing: Rollout, version: int) -> None:
    """:raises VersionRefusedError: where the version is no newer than the active one, or another is beside that already"""
    refused, beside = Refusal(standing.pipeline, version, "started"), standing.beside
    if version <= standing.active:
        raise refused(f"version {standing.active} is active", "A new version has a higher number.")
    if beside is None:
        return
    what = "is being discarded" if beside.leaving else f"is {beside.state.value.replace('_', ' ')}"
    room = f"`hindcast discard {standing.pipeline} --version {beside.version}` makes room for it"
    cure = f"Wait until {beside.until.isoformat()}: it is kept warm until then." if beside.until else f"{room}."
    raise refused(f"version {beside.version} {what} beside the active one", cure)


def check_shadow(standing: Rollout, version: int, action: str) -> InactiveVersion:
    """The version beside the active one, where it is a shadow.

    :raises VersionRefusedError: where it is not
    """
    refused, beside = Refusal(standing.pipeline, version, action), standing.beside
    if version == standing.active:
        raise refused("it is active already", f"`hindcast versions --pipeline {standing.pipeline}` lists what there is.")
    if beside is None or beside.version != version or beside.state not in SHADOW or beside.leaving:
        cure = f"`hindcast reprocess {standing.pipeline} --version {version}` starts one that was never used."
        raise refused("it is not a shadow of the active version", cure)
    return beside


def check_no_reshard(standing: Rollout, leases: Iterable[Lease]) -> None:
    """Neither the active version nor the one beside it is in the middle of a reshard.

    :raises VersionRefusedError: where a shard of one waits for its parents
    """
    assert standing.beside is not None
    found, new = list(leases), standing.beside.version
    for version in (standing.active, new):
        if waits := resharding.waiting(found, standing.pipeline, version):
            names = ", ".join(lease.status_value for lease in waits)
            problem = f"version {version} is being resharded: {names} must wait for the shards before to end"
            cure = 'Try again in a moment; `hindcast leases` shows what is not TERMINATED yet. Or give --despite "reason".'
            raise Refusal(standing.pipeline, new, "promoted")(problem, cure)


class Refusal:
    """Makes the error of one refused command."""

    def __init__(self, pipeline: str, version: int, action: str) -> None:
        self._fields = {"pipeline": pipeline, "version": version, "action": action}

    def __call__(self, problem: str, cure: str) -> VersionRefusedError:
        return VersionRefusedError(**self._fields, problem=problem, cure=cure)


def _standing(snapshot: Snapshot, name: str) -> tuple[Lease, Rollout]:
    row = snapshot.leases.get(desired_key(name))
    if row is None:
        raise UnknownPipelineError(pipeline=name, known=", ".join(sorted(rollouts(snapshot.leases.values()))) or "none")
    return row, Rollout.of(PipelineRow.of(row))


def _joined(standing: Rollout, seam_ms: int | None) -> tuple[ServedUntil, ...]:
    """Where readers get the windows up to the seam from, once the version beside is active."""
    if seam_ms is None:
        return ()
    kept = tuple(ServedUntil(one.version, min(one.to_ms, seam_ms)) for one in standing.earlier)
    whole = (*kept, ServedUntil(standing.active, seam_ms))
    return tuple(one for number, one in enumerate(whole) if not number or one.to_ms > whole[number - 1].to_ms)


def _change(
    standing: Rollout, kind: ChangeKind, version: int, active: int, who: str = "", *, despite: str = "", offsets: Offsets | None = None
) -> Change:
    return Change(
        id=uuid.uuid4().hex[:12],
        kind=kind,
        version=version,
        active=active,
        at=datetime.now(UTC),
        who=who,
        despite=despite,
        offsets=offsets,
        number=standing.changes + 1,
    )
