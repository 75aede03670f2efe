"""The second part of `make simulate`: many histories of the protocols of streams, then the mutants. SEED repeats
a run; each history has a seed of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import time
from collections import Counter

from protocols import random_histories
from protocols.history import BrokenPromiseError
from protocols.mutants import MUTANTS, caught

#: Seconds between two lines that say how far it is.
PROGRESS_SECONDS = 15.0
#: Most histories in which a mutant must be caught.
MUTANT_HISTORIES = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="histories to draw")
    parser.add_argument(
        "--seed", default="", help="repeat the run, or (as SEED/NUMBER) the one history, of this seed"
    )
    options = parser.parse_args()
    if "/" in options.seed:
        random_histories.play(options.seed)
        return 0
    began = time.monotonic()
    seed = options.seed or str(secrets.randbelow(10**9))
    print(f"Playing {options.examples} histories of the streams' protocols with SEED={seed}.", flush=True)
    # Each process of the pool plays alone. More threads of delta-rs and Arrow would only get into each other's way.
    os.environ.update(TOKIO_WORKER_THREADS="1", OMP_NUM_THREADS="1")
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        broken, seen = _histories(pool, seed, options.examples)
        missed = 0
        for name, found in pool.imap(_caught, MUTANTS):
            if not found:
                missed += 1
                print(f"  MISSED: {name}", flush=True)
    ways = ", ".join(f"{seen[way]} x {way}" for way in random_histories.WAYS)
    print(
        f"protocols: {options.examples} histories, {seen['a batch']} batches, {broken} broke an oracle; "
        f"{len(MUTANTS) - missed} of {len(MUTANTS)} mutants caught; SEED={seed}, "
        f"{time.monotonic() - began:.0f} s. Among them: {ways}."
    )
    return 1 if broken or missed else 0


def _histories(pool: multiprocessing.pool.Pool, seed: str, examples: int) -> tuple[int, Counter[str]]:
    broken = 0
    seen: Counter[str] = Counter()
    said = time.monotonic()
    seeds = [f"{seed}/{number}" for number in range(examples)]
    for number, (breach, found) in enumerate(pool.imap_unordered(_played, seeds, chunksize=4), start=1):
        seen.update(found)
        if breach:
            broken += 1
            print(f"  {breach}", flush=True)
        if time.monotonic() - said >= PROGRESS_SECONDS or number == examples:
            said = time.monotonic()
            print(f"  {number} histories, {seen['a batch']} batches", flush=True)
    return broken, seen


def _played(seed: str) -> tuple[str, Counter[str]]:
    try:
        return "", random_histories.play(seed).seen
    except BrokenPromiseError as breach:
        return str(breach), Counter()


def _caught(name: str) -> tuple[str, str]:
    return name, caught(name, MUTANT_HISTORIES)


if __name__ == "__main__":
    raise SystemExit(main())
