"""Change which versions of a pipeline are consumed: the active one and at most one inactive one.

Readers get the active one. All of it is in the pipeline's one row (:mod:`hindcast.shards.active_version`). So
each change is one compare-and-swap, and every reader of that row gets a consistent answer:

- *begin* adds an inactive version, with its shards; it is ``CATCHING_UP``, then ``LIVE``;
- *promote* makes it the active one. The old version becomes the inactive one, ``WARM``: it is consumed as
  before, so that *back out* is one swap, too;
- *keep_warm* notes for how long the warm version was seen to be warm, and ends it once its time is over. Its
  table stays, as readers may get older windows from it;
- *leave* and *remove* discard the inactive version: first its shards are no longer consumed, then they are
  removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hindcast.clock import utc_from_ms
from hindcast.errors import UnknownPipelineError, VersionRefusedError
from hindcast.leases.lease import REMOVED, Lease
from hindcast.leases.store import LeaseStore, Snapshot, swap
from hindcast.partitions import Offsets
from hindcast.shards import resharding
from hindcast.shards.active_version import Rollout, rollouts
from hindcast.shards.pipeline_row import (
    SHADOW,
    Change,
    ChangeKind,
    InactiveState,
    InactiveVersion,
    PipelineRow,
    ServedUntil,
    desired_key,
)


@dataclass(frozen=True)
class _Decision:
    """What one commit writes: the pipeline's row, and shards."""

    rollout: Rollout
    shards: Sequence[Lease] = ()


class Versions:
    """Reads and changes the versions of pipelines.

    Each refusal is decided on the snapshot that would be changed.
    """

    def __init__(self, store: LeaseStore) -> None:
        self._store = store

    def of(self, name: str) -> Rollout:
        """:raises UnknownPipelineError: if nothing was ever wanted of it"""
        return Rollout.of(PipelineRow.of(_row_of(self._store.read(), name)))

    def begin(
        self, name: str, beside: InactiveVersion, start: Offsets, *, columns_from: int, who: str = ""
    ) -> Rollout:
        """Add an inactive version, with its shards, in one commit.

        :param start: the offsets at which its shards begin
        :param columns_from: the active version whose columns it was checked against
        :raises VersionRefusedError: if it is no newer than the active one, or there is an inactive version
            already
        """

        def decide(rollout: Rollout, snapshot: Snapshot) -> _Decision:
            check_room(rollout, beside.version)
            refused = Refusal(name, beside.version, "started")
            if rollout.active != columns_from:
                raise refused(f"version {rollout.active} became active meanwhile", "Start it again.")
            if resharding.of_version(snapshot.leases.values(), name, beside.version):
                cure = "Raise the version: a version is never used for something else."
                raise refused("it has shards already", cure)
            change = _change(rollout, ChangeKind.STARTED, beside.version, rollout.active, who, offsets=start)
            shards = resharding.first_generation(name, beside.version, beside.shards, start)
            return _Decision(replace(rollout, beside=beside, change=change), shards)

        return self._swap(name, decide)

    def note_caught_up(self, seen: Rollout) -> Rollout | None:
        """Note that the inactive version has reached its topic's end; None if another process was faster."""

        def decide(rollout: Rollout, _: Snapshot) -> _Decision | None:
            beside = rollout.beside
            if beside is None or seen.beside is None or beside.version != seen.beside.version:
                return None
            if beside.state is not InactiveState.CATCHING_UP:
                return None
            change = _change(rollout, ChangeKind.CAUGHT_UP, beside.version, rollout.active)
            live = replace(beside, state=InactiveState.LIVE)
            return _Decision(replace(rollout, beside=live, change=change))

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
        """Make the inactive version the active one: the swap by which readers switch.

        :param tables: what the version that is active now writes
        :param warm_seconds: for how long the old version is kept warm
        :param barrier: the offsets up to which the old version had read when the new one was found to have
            read as far
        :param since: the id of the change after which the version was proved: none may have come in between
        :param despite: why it is promoted although it was not proved; then no reshard has to end first
        :raises VersionRefusedError: if it is not the inactive version, something has changed since it was
            proved, or a shard of either version waits for its parents
        """

        def decide(rollout: Rollout, snapshot: Snapshot) -> _Decision:
            new = check_shadow(rollout, version, "promoted")
            if not despite:
                check_no_reshard(rollout, snapshot.leases.values())
            if rollout.change is None or rollout.change.id != since:
                refused = Refusal(name, version, "promoted")
                raise refused(
                    "something changed while it was looked at", "See `hindcast versions`; try again."
                )
            change = _change(
                rollout, ChangeKind.PROMOTED, version, version, who, despite=despite, offsets=barrier
            )
            old = InactiveVersion(
                version=rollout.active,
                state=InactiveState.WARM,
                shards=rollout.shards,
                tables=tables,
                until=change.at + timedelta(seconds=warm_seconds),
                earlier=rollout.earlier,
            )
            promoted = replace(
                rollout,
                active=version,
                shards=new.shards,
                tables=new.tables,
                beside=old,
                earlier=_joined(rollout, new.seam_ms),
                change=change,
            )
            return _Decision(promoted)

        return self._swap(name, decide)

    def back_out(self, name: str, *, who: str = "", since: str = "") -> Rollout:
        """Make the warm version the active one again. The other becomes the inactive one, ``LIVE``.

        :param since: the id of the promotion that is to be undone; without it the last one is
        :raises VersionRefusedError: if no version is kept warm, or another change came after that promotion
        """

        def decide(rollout: Rollout, _: Snapshot) -> _Decision:
            warm = rollout.beside
            refused = Refusal(name, rollout.active, "backed out")
            if warm is None or warm.state is not InactiveState.WARM or warm.leaving:
                raise refused(
                    "no version before it is kept warm",
                    f"`hindcast versions --pipeline {name}` lists what there is; "
                    "the old rules can be started as a new version.",
                )
            if since and (rollout.change is None or rollout.change.id != since):
                raise refused(
                    "something changed since that promotion",
                    "See `hindcast versions`; "
                    "`hindcast back-out` undoes the last promotion, whichever that was.",
                )
            # What it lacks that the warm version has: the windows that readers had from others while it was
            # active.
            seam_ms = None
            if rollout.earlier:
                seam_ms = rollout.earlier[-1].to_ms
            newer = InactiveVersion(
                version=rollout.active,
                state=InactiveState.LIVE,
                shards=rollout.shards,
                tables=rollout.tables,
                seam_ms=seam_ms,
            )
            restored = replace(
                rollout,
                active=warm.version,
                shards=warm.shards,
                tables=warm.tables,
                beside=newer,
                earlier=warm.earlier,
                change=_change(rollout, ChangeKind.BACKED_OUT, rollout.active, warm.version, who),
            )
            return _Decision(restored)

        return self._swap(name, decide)

    def keep_warm(self, seen: Rollout, seconds: float) -> Rollout | None:
        """Note for how long the warm version was seen as it is in ``seen``, and end it if its time is over.

        :returns: None if no version is warm any more, or if another process has noted some of that time
        """

        def decide(rollout: Rollout, _: Snapshot) -> _Decision | None:
            if rollout.warm_sign is None or rollout.warm_sign != seen.warm_sign:
                return None
            warm = rollout.beside
            assert warm is not None
            if seconds < rollout.warm_seconds_left:
                noted = replace(warm, warmed_seconds=warm.warmed_seconds + seconds)
                return _Decision(replace(rollout, beside=noted))
            change = _change(rollout, ChangeKind.RETIRED, warm.version, rollout.active)
            return _Decision(replace(rollout, beside=None, change=change))

        return self._try(seen.pipeline, decide)

    def leave(self, name: str, version: int) -> Rollout:
        """Let no worker consume the inactive version any more: the first half of discarding it.

        :raises VersionRefusedError: if it is active, not there, or readers still get windows from it
        """

        def decide(rollout: Rollout, _: Snapshot) -> _Decision | None:
            beside = rollout.beside
            refused = Refusal(name, version, "discarded")
            if version == rollout.active:
                cure = f"`hindcast back-out {name}` returns to the one before, while that is kept warm."
                raise refused("it is the active one", cure)
            if beside is None or beside.version != version:
                cure = f"`hindcast versions --pipeline {name}` lists what there is."
                raise refused("it is not the inactive version", cure)
            for served in rollout.earlier:
                if served.version == version:
                    problem = (
                        f"readers get windows that end by {utc_from_ms(served.to_ms).isoformat()} from it"
                    )
                    raise refused(problem, "Keep it: nothing else holds those windows.")
            if beside.leaving:
                return None
            return _Decision(replace(rollout, beside=replace(beside, leaving=True)))

        return self._try(name, decide) or self.of(name)

    def remove(self, name: str, version: int, *, who: str = "") -> Rollout | None:
        """Remove the inactive version and its shards: the second half of discarding it.

        :returns: None if that is done already
        """

        def decide(rollout: Rollout, snapshot: Snapshot) -> _Decision | None:
            beside = rollout.beside
            if beside is None or beside.version != version or not beside.leaving:
                return None
            shards = resharding.of_version(snapshot.leases.values(), name, version)
            removed = [lease.evolve(state=REMOVED) for lease in shards]
            change = _change(rollout, ChangeKind.DISCARDED, version, rollout.active, who)
            return _Decision(replace(rollout, beside=None, change=change), removed)

        return self._try(name, decide)

    def _swap(self, name: str, decide: Callable[[Rollout, Snapshot], _Decision]) -> Rollout:
        """Decide and commit once; return the rollout that was written."""
        written = self._try(name, decide)
        assert written is not None
        return written

    def _try(self, name: str, decide: Callable[[Rollout, Snapshot], _Decision | None]) -> Rollout | None:
        """Decide and commit once.

        :returns: the rollout that was written; None if nothing had to be
        """
        written: list[Rollout] = []
        token = uuid.uuid4().hex

        def once(snapshot: Snapshot) -> list[Lease]:
            lease = _row_of(snapshot, name)
            row = PipelineRow.of(lease)
            if row.written_by == token:
                return []  # an earlier commit of unknown outcome had landed
            written.clear()
            decision = decide(Rollout.of(row), snapshot)
            if decision is None:
                return []
            written.append(decision.rollout)
            return [decision.rollout.written(lease, token), *decision.shards]

        swap(self._store, once)
        if not written:
            return None
        return written[0]


def check_room(rollout: Rollout, version: int) -> None:
    """:raises VersionRefusedError: if the version is no newer than the active one, or there is an inactive
    one already
    """
    beside = rollout.beside
    refused = Refusal(rollout.pipeline, version, "started")
    if version <= rollout.active:
        raise refused(f"version {rollout.active} is active", "A new version has a higher number.")
    if beside is None:
        return
    state = beside.state.value.replace("_", " ")
    if beside.leaving:
        state = "being discarded"
    cure = f"`hindcast discard {rollout.pipeline} --version {beside.version}` makes room for it."
    if beside.until is not None:
        cure = f"Wait until {beside.until.isoformat()}: it is kept warm until then."
    raise refused(f"there is an inactive version already: version {beside.version} is {state}", cure)


def check_shadow(rollout: Rollout, version: int, action: str) -> InactiveVersion:
    """The inactive version, if readers never had it or have it no longer.

    :raises VersionRefusedError: if the version is not such a one
    """
    beside = rollout.beside
    refused = Refusal(rollout.pipeline, version, action)
    if version == rollout.active:
        raise refused(
            "it is active already", f"`hindcast versions --pipeline {rollout.pipeline}` lists what there is."
        )
    if beside is None or beside.version != version or beside.state not in SHADOW or beside.leaving:
        cure = f"`hindcast reprocess {rollout.pipeline} --version {version}` starts one that was never used."
        raise refused("it is not a shadow of the active version", cure)
    return beside


def check_no_reshard(rollout: Rollout, leases: Iterable[Lease]) -> None:
    """Neither the active version nor the inactive one is in the middle of a reshard.

    :raises VersionRefusedError: if a shard of one of them waits for its parents
    """
    assert rollout.beside is not None
    found = list(leases)
    new = rollout.beside.version
    for version in (rollout.active, new):
        waits = resharding.waiting(found, rollout.pipeline, version)
        if waits:
            names = ", ".join(lease.status_value for lease in waits)
            problem = f"version {version} is being resharded: {names} must wait for the shards before to end"
            raise Refusal(rollout.pipeline, new, "promoted")(
                problem,
                "Try again in a moment; `hindcast leases` shows what is not TERMINATED yet. "
                'Or give --despite "reason".',
            )


class Refusal:
    """Makes the error of one refused command."""

    def __init__(self, pipeline: str, version: int, action: str) -> None:
        self._fields = {"pipeline": pipeline, "version": version, "action": action}

    def __call__(self, problem: str, cure: str) -> VersionRefusedError:
        return VersionRefusedError(**self._fields, problem=problem, cure=cure)


def _row_of(snapshot: Snapshot, name: str) -> Lease:
    """:raises UnknownPipelineError: if nothing was ever wanted of the pipeline"""
    lease = snapshot.leases.get(desired_key(name))
    if lease is None:
        known = sorted(rollouts(snapshot.leases.values()))
        raise UnknownPipelineError(pipeline=name, known=", ".join(known) or "none")
    return lease


def _joined(rollout: Rollout, seam_ms: int | None) -> tuple[ServedUntil, ...]:
    """From which versions readers get the windows up to the seam, once the inactive version is active."""
    if seam_ms is None:
        return ()
    joined: list[ServedUntil] = []
    for served in (*rollout.earlier, ServedUntil(rollout.active, seam_ms)):
        to_ms = min(served.to_ms, seam_ms)
        if not joined or to_ms > joined[-1].to_ms:
            joined.append(ServedUntil(served.version, to_ms))
    return tuple(joined)


def _change(
    rollout: Rollout,
    kind: ChangeKind,
    version: int,
    active: int,
    who: str = "",
    *,
    despite: str = "",
    offsets: Offsets | None = None,
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
        number=rollout.changes + 1,
    )
