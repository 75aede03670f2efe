"""Run one worker: ``python -m hindcast.apps.consume [--fleet NAME]``.

It takes a slot of the fleet and its share of the shards, and consumes them until SIGTERM. Then it ends its
current batches and releases its leases. If the fleet is complete it says so and exits 0 without reading a
byte.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback

from hindcast.errors import HindcastError
from hindcast.installation import Installation
from hindcast.processes.end_with_parent import exit_now
from hindcast.settings import Settings
from hindcast.stream.worker import Worker


def main() -> int:
    """Parse the arguments, run the worker, return its exit code."""
    # delta-rs reads this on its first call. By default it starts a thread for each core. A worker asks
    # little of it, and waking those threads is a tenth of what its leases cost.
    os.environ.setdefault("TOKIO_WORKER_THREADS", "1")
    parser = argparse.ArgumentParser(description="Run one worker of a fleet.")
    parser.add_argument("--fleet", help="the fleet to join; default HINDCAST_FLEET")
    arguments = parser.parse_args()
    try:
        if arguments.fleet:
            settings = Settings(fleet=arguments.fleet)
        else:
            settings = Settings()
        return Worker(Installation(settings)).run()
    except HindcastError as error:
        print(f"hindcast: {error}", file=sys.stderr)
        return error.exit_code
    except Exception:  # noqa: BLE001 - a thread that still waits must not keep the process
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    exit_now(main())
