"""`hf:NAME` with the real library and a real download, from a server on this machine that answers as the hub does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leakboard.core.registry import IMPORT_ROOT
from tests.leaderboard.runs import HANG

NAME, COMMIT = "tester/pictures", "1" * 40
API, FILE = f"/api/datasets/{NAME}", f"/datasets/{NAME}/resolve"
TRAIN, TEST = (f"data/{split}-00000-of-00001.parquet" for split in ("train", "test"))
#: reads each of the settings given as JSON, in a process of its own: the library takes its address when it is imported
CHILD = """
import json, sys
from leakboard.core.errors import UserError
from leakboard.datasets.hf import HuggingFace
for settings in json.loads(sys.argv[1]):
    try:
        pool = HuggingFace(size=20, **settings).read()
        print(json.dumps([pool.class_names, pool.labels.tolist(), pool.is_test.tolist(), pool.pixels[0].tolist()]))
    except UserError as error:
        print(json.dumps(str(error)))
"""


class Answers(BaseHTTPRequestHandler):
    """What the hub says about one data set of two parquet files; everything else does not exist."""

    timeout = 20
    server: Hub

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:  # the name is http.server's
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        files = self.server.files
        if path in (f"{API}/revision/main", f"{API}/revision/{COMMIT}"):
            return self.answer(json.dumps({"id": NAME, "sha": COMMIT, "siblings": [{"rfilename": n} for n in files]}))
        if path == f"{API}/tree/{COMMIT}":
            folder = {"type": "directory", "path": "data", "size": 0, "oid": "2" * 40}
            return self.answer(json.dumps([folder, self.entry("README.md")]))
        if path == f"{API}/tree/{COMMIT}/data":
            return self.answer(json.dumps([self.entry(TRAIN), self.entry(TEST)]))
        revision, _, name = path.removeprefix(f"{FILE}/").partition("/")
        if path.startswith(FILE) and revision in ("main", COMMIT) and name in files:
            return self.answer(files[name])
        return self.answer("{}", status=404)

    do_HEAD = do_GET

    def entry(self, name: str) -> dict[str, Any]:
        content = self.server.files[name]
        return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def answer(self, body: str | bytes, status: int = 200) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        told = {"Content-Length": len(content), "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        for header, value in (told | {"X-Repo-Commit": COMMIT}).items():
            self.send_header(header, str(value))
        if status == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


class Hub(ThreadingHTTPServer):
    """A hub with one data set, on 127.0.0.1 only."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.asked = files, list[str]()
        super().__init__(("127.0.0.1", 0), Answers)


def picture(index: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(index).integers(0, 256, (20, 20, 3), dtype=np.uint8)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    library = pytest.importorskip("datasets", reason="the library `datasets` is not installed: make test-flower has it")
    features = library.Features({"img": library.Image(), "label": library.ClassLabel(names=["cat", "dog"])})
    files = {"README.md": b"---\nlicense: mit\n---\n"}
    for name, count in ((TRAIN, 6), (TEST, 2)):
        held = {"img": [Image.fromarray(picture(i)) for i in range(count)], "label": [i % 2 for i in range(count)]}
        library.Dataset.from_dict(held, features=features).to_parquet(str(tmp_path / "made.parquet"))
        files[name] = (tmp_path / "made.parquet").read_bytes()
    with Hub(files) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def read(hub: Hub, home: Path, *settings: dict[str, Any]) -> list[Any]:
    """What a fresh process gets with each of the settings, one after the other."""
    hub.asked.clear()
    own = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(home), "PYTHONPATH": str(IMPORT_ROOT)}
    outside = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    asked = json.dumps([{"path": NAME, **each} for each in settings])
    command = [sys.executable, "-c", CHILD, asked]
    env = {**outside, **own, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(command, env=env, cwd=home.parent, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_data_set_is_downloaded_with_leave_only_and_then_read_from_the_cache(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (refused,) = read(hub, home, {})
    assert "cannot be opened" in refused
    assert "--download" in refused
    assert hub.asked == []  # not even for the list of files

    (names, labels, is_test, first), unknown = read(
        hub, home, {"download": True}, {"path": "tester/nothing", "download": True}
    )
    assert (names, labels) == (["cat", "dog"], [0, 1] * 4)
    assert is_test == [False] * 6 + [True] * 2
    assert first == picture(0).transpose(2, 0, 1).tolist()  # lossless
    assert {f"GET {FILE}/{COMMIT}/{name}" for name in (TRAIN, TEST)} <= set(hub.asked)
    assert "hf:tester/nothing cannot be opened" in unknown

    revisions = [{"revision": name} for name in (COMMIT, "main", "3" * 40, "v2")]
    cached, exact, main, *others = read(hub, home, {}, *revisions)
    assert cached == exact == main == [names, labels, is_test, first]
    assert all("is not what the library's cache has at hand; --download" in told for told in others)
    assert hub.asked == []
