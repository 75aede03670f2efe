"""`make simulate`: many long histories of the lease core, then the mutants. SEED repeats a run; each history
has a seed of its own.
"""

from __future__ import annotations

import argparse
import secrets
import time

from simulation import random_histories, search
from simulation.mutants import MUTANTS, mutated

#: Seconds between two lines that say how far it is.
PROGRESS_SECONDS = 5.0
STEPS = 100
#: Most histories in which a mutant must be caught.
MUTANT_HISTORIES = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1000, help="histories to draw")
    parser.add_argument("--steps", type=int, default=STEPS, help="actions in each")
    parser.add_argument(
        "--seed", default="", help="repeat the run, or (as SEED/NUMBER) the one history, of this seed"
    )
    parser.add_argument(
        "--depth",
        type=int,
        default=8,
        help="moves of the exhaustive search; each further one takes about three times as long",
    )
    options = parser.parse_args()
    began = time.monotonic()
    if "/" in options.seed:
        return 1 if _broken(options.seed, options.steps) else 0
    seed = options.seed or str(secrets.randbelow(10**9))
    print(f"Simulating {options.examples} histories of {options.steps} steps with SEED={seed}.", flush=True)
    broken = sum(_broken(history, options.steps) for history in _told(seed, options.examples, options.steps))
    breaches = _search(options.depth)
    missed = _mutants(seed)
    print(
        f"simulate: {options.examples} histories, {options.examples * options.steps} steps, {broken} broke an oracle; "
        f"exhaustive search: {breaches} breaches; {len(MUTANTS) - missed} of {len(MUTANTS)} mutants caught; "
        f"SEED={seed}, {time.monotonic() - began:.0f} s."
    )
    return 1 if broken or breaches or missed else 0


def _told(seed: str, examples: int, steps: int):  # noqa: ANN202 - an iterator of seeds
    said = time.monotonic()
    for number in range(examples):
        yield f"{seed}/{number}"
        if time.monotonic() - said >= PROGRESS_SECONDS or number + 1 == examples:
            said = time.monotonic()
            print(f"  {number + 1} histories, {(number + 1) * steps} steps", flush=True)


def _broken(seed: str, steps: int) -> bool:
    """Play one history; where it breaks an oracle, print the fewest actions that do."""
    workers, shards, actions = random_histories.draw(seed, steps)
    breaches = random_histories.play(workers, shards, actions).breaches()
    if breaches:
        first = breaches[0]
        print(
            f"SEED={seed} breaks {first.oracle} at {first.event.at:.1f} s: {first.text}\n  {workers} workers, {shards} shards:"
        )
        for action in random_histories.shrink(workers, shards, actions, first.oracle):
            print(f"  {action}")
    return bool(breaches)


def _search(depth: int) -> int:
    breaches = 0
    for name, moves, most in (("coarse", search.COARSE, depth), ("fine", search.FINE, depth - 3)):
        for owned in (False, True):
            found = search.explore(most, moves, owned=owned)
            breaches += len(found.breaches)
            print(
                f"  all {found.histories} histories of {most} {name} moves from {'an owned' if owned else 'a free'} shard: "
                f"{found.states} states, {found.moves} moves played, {len(found.breaches)} breaches",
                flush=True,
            )
            for breach in found.breaches:
                print(f"    {breach.oracle}: {breach.text}")
    return breaches


def _mutants(seed: str) -> int:
    missed = 0
    for name in MUTANTS:
        with mutated(name):
            found = random_histories.first_breach(seed, MUTANT_HISTORIES, STEPS)
        missed += found is None
        caught = (
            f"NOT caught in {MUTANT_HISTORIES} histories"
            if found is None
            else f"caught by {found[1].oracle} after {found[0]} histories"
        )
        print(f"  {name}: {caught}", flush=True)
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
