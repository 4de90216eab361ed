"""LeakBoard's command line: see `run_benchmark.py --help`, or run it without arguments for the suite `quick`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from leaderboard.cli import main

if __name__ == "__main__":
    sys.exit(main())
