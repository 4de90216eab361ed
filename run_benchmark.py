"""LeakBoard's command line: see `run_benchmark.py --help`, or run it without arguments for the suite `quick`."""

import sys
from pathlib import Path

# the package lies in src/; the checkout itself leaves the path, where its folder `datasets` would hide a library
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

from leakboard.leaderboard.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
