"""Start a SuperLink and two SuperNodes on this machine, run the app on them, and end them again.

    python run.py FOLDER      # the recording goes to FOLDER

These are Flower's own commands (its guide "Run Flower with the Deployment Runtime"), one process each. Each client runs
in processes of its own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

HERE, BIN = Path(__file__).resolve().parent, Path(sys.executable).parent
CLIENTS = 2
#: seconds until a server must answer: only one that hangs takes so long
PATIENCE = 300.0


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until somebody listens on a port."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and server.poll() is None:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    sys.exit("The SuperLink did not start: see superlink.log.")


def check_rounds(folder: Path) -> int:
    """0 if all rounds were recorded. `flwr run` itself ends with 0 even if the run failed."""
    wanted = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]["rounds"]
    found = len(list((folder / "rounds").glob("[0-9]*")))
    if found < wanted:
        print(f"Flower ended after {found} of {wanted} rounds: see superlink.log.", file=sys.stderr)
    return int(found < wanted)


def main(folder: Path, home: Path) -> int:
    """Run the app; returns the exit code of `flwr run`."""
    port, logs = free_port(), folder.parent
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{BIN}{os.pathsep}{environment.get('PATH', '')}"

    def start(log: str, *command: object) -> subprocess.Popen[bytes]:
        with (logs / log).open("wb") as out:
            return subprocess.Popen(list(map(str, command)), stdout=out, stderr=subprocess.STDOUT, env=environment)

    running = [
        start(
            "superlink.log",
            *(BIN / "flower-superlink", "--insecure", "--port", port, "--disable-runtime-dependency-installation"),
        )
    ]
    try:
        wait_for(port, running[0])
        for index in range(CLIENTS):
            node = BIN / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", free_port()
            running.append(start(f"client-{index}.log", *node, "--node-config", f"partition-id={index}"))
        command = [BIN / "flwr", "run", HERE, "here", "--stream", "--run-config", f'recording="{folder}"']
        code = subprocess.run(list(map(str, command)), env=environment, check=False).returncode
        return code or check_rounds(folder)
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait()


if __name__ == "__main__":
    wanted = Path(sys.argv[1] if len(sys.argv) > 1 else "recording").resolve()
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(wanted, Path(temporary)))
