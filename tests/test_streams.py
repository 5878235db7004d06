"""Standard input and output: rows go through as they come, and interruptions leave no traces."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

import command_line
from command_line import Folder
from earshot.errors import InvalidFile
from earshot.files import csv as csv_files
from earshot.files import read_messages

PATIENCE_S = 600.0
"""Until a process is ready: kernels may have to be compiled."""
DELIVERY_S = 5.0
"""Far more than a line takes (some milliseconds), for machines that are busy."""

SUBSCRIPTIONS = "id,keywords,x,y,radius\nann,fire,151.2,-33.87,5000\nben,rain,151.2,-33.87,5000\n"
SEMANTICS = {
    "boolean": [],
    "ranked": ["--rank"],
    "top-k": ["--top-k", "1", "--window", "1"],
}


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    made = command_line.Folder(tmp_path, capsys)
    (made / "s.csv").write_text(SUBSCRIPTIONS)
    (made / "points.csv").write_text(SUBSCRIPTIONS.replace("5000", "0"))
    return made


@contextmanager
def earshot(
    folder: Folder, *arguments: object, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "earshot", *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=folder.path, bufsize=0,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Return the next line that a process writes, if it comes in time."""
    assert process.stdout is not None
    line = b""
    until = time.monotonic() + seconds
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], until - time.monotonic())
        assert ready, f"nothing within {seconds} s after {line!r}"
        byte = process.stdout.read(1)
        assert byte, process.communicate()[1].decode()
        line += byte
    return line


def message(number: int, text: str = "fire", **more: Any) -> dict[str, Any]:
    return {"id": number, "text": text, "x": 151.2, "y": -33.87, **more}


def ndjson(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


# ---- as they come -------------------------------------------------------------------------------


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_each_line_is_delivered_before_the_next_one_comes(semantics: str, folder: Folder) -> None:
    subscriptions = "points.csv" if semantics == "top-k" else "s.csv"
    arguments = ["match", subscriptions, "-", "--out", "-", *SEMANTICS[semantics]]
    with earshot(folder, *arguments) as process:
        assert process.stdin is not None
        for number in range(20):
            started = time.monotonic()
            process.stdin.write(ndjson(message(number)))
            found = json.loads(line_of(process, PATIENCE_S if number == 0 else DELIVERY_S))
            while found.get("sign") == "-":  # of the message before
                found = json.loads(line_of(process, DELIVERY_S))
            assert (found["message_id"], found["subscription_id"]) == (number, "ann")
            print(f"{semantics} {number}: {time.monotonic() - started:.4f} s")
        rest, said = process.communicate(timeout=PATIENCE_S)
    assert (rest, process.returncode) == (b"", 0)
    assert b"20 messages against 2 subscriptions" in said


def test_csv_comes_and_goes_by_rows(folder: Folder) -> None:
    arguments = ["match", "s.csv", "-", "--out", "-", "--format", "csv"]
    with earshot(folder, *arguments) as process:
        assert process.stdin is not None
        process.stdin.write(b"id,text,x,y\n1,fire,151.2,-33.87\n")
        assert line_of(process, PATIENCE_S) == b'"message_id","subscription_id"\n'
        assert line_of(process, DELIVERY_S) == b'1,"ann"\n'
        process.stdin.write(b'2,"fire, a fire\nand ')  # a row in pieces, one within quotes
        process.stdin.write(b'rain",151.2,-33.87\n3,ra')
        assert {line_of(process, DELIVERY_S) for _ in range(2)} == {b'2,"ann"\n', b'2,"ben"\n'}
        process.stdin.write(b"in,151.2,-33.87")  # and one without an end of line
        rest, _ = process.communicate(timeout=PATIENCE_S)
    assert (rest, process.returncode) == (b'3,"ben"\n', 0)


def piped(folder: Folder, content: bytes, *arguments: object) -> tuple[int, str, str]:
    """Return the exit code of a command that reads the content, and what it said."""
    with earshot(folder, *arguments) as process:
        out, err = process.communicate(content, timeout=PATIENCE_S)
    return process.returncode, out.decode(), err.decode()


def test_the_first_lines_of_a_stream_may_be_wrong(folder: Folder) -> None:
    wrong = b'\n{"id":null}\nrubbish\n{"id":"b","text":"fire"}\n'
    good = {**message(0), "id": "c"}
    options = ["--out", "-", "--on-error", "reject", "--rejects", "r.ndjson"]
    code, out, err = piped(folder, wrong + ndjson(good), "match", "s.csv", "-", *options)
    assert (code, json.loads(out)) == (0, {"message_id": "c", "subscription_id": "ann"})
    assert "3 rows rejected, see r.ndjson" in err
    rejects = command_line.rows_in(folder / "r.ndjson")
    assert [(each["source"], each["row"]) for each in rejects] == [
        ("standard input", row) for row in range(3)
    ]
    code, out, err = piped(folder, wrong, "match", "s.csv", "-", "--out", "-")
    assert (code, out) == (1, "")
    assert "standard input" in err


def test_nothing_comes(folder: Folder) -> None:
    code, out, err = piped(folder, b"", "match", "s.csv", "-", "--out", "-")
    assert (code, out) == (0, "")
    assert "0 messages against 2 subscriptions" in err


def test_subscriptions_and_geojson_come_from_streams_too(folder: Folder) -> None:
    (folder / "m.ndjson").write_bytes(ndjson(message(1)))
    row = {"id": 7, "keywords": ["fire"]}
    code, out, _ = piped(folder, ndjson(row), "match", "-", "m.ndjson", "--out", "-", "--json")
    assert (code, json.loads(out)) == (0, {"message_id": 1, "subscription_id": 7})
    feature = {"type": "Feature", "id": 2, "properties": {"text": "fire"},
               "geometry": {"type": "Point", "coordinates": [151.2, -33.87]}}  # fmt: skip
    features = json.dumps({"type": "FeatureCollection", "features": [feature]}).encode()
    arguments = ["match", "s.csv", "-", "--out", "-", "--format", "geojson"]
    code, out, _ = piped(folder, features, *arguments)
    assert (code, json.loads(out)) == (0, {"message_id": 2, "subscription_id": "ann"})


def test_whoever_has_read_enough_ends_it_quietly(folder: Folder) -> None:
    with earshot(folder, "match", "s.csv", "-", "--out", "-") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(ndjson(message(1)))
        line_of(process, PATIENCE_S)
        process.stdout.close()
        process.stdin.write(ndjson(message(2)))
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 128 + signal.SIGPIPE


def test_a_stream_is_there_once(folder: Folder) -> None:
    for arguments, reason in (
        (["-", "-", "--out", "o.csv"], "MESSAGES is -, and so is SUBSCRIPTIONS"),
        (["s.csv", "-", "--out", "-", "--on-error", "reject", "--rejects", "-"],
         "--rejects is -, and so is --out"),
        (["points.csv", "-", "--out", "-", "--top-k", 2, "--window", 9, "--weights", 5],
         "--weights: a stream cannot be read twice"),
        (["s.csv", "m.csv", "--out", "o.csv", "--format", "csv"], "--format is for -"),
    ):  # fmt: skip
        code, out, err = folder.run("match", *(folder / str(each) if str(each).endswith("s.csv")
                                               else each for each in arguments))  # fmt: skip
        assert (code, out) == (2, "")
        assert reason in err


# ---- interrupted --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_what_was_there(number: int, folder: Folder) -> None:
    outputs = ["o.ndjson", "r.csv"]
    for name in outputs:
        (folder / name).write_text("from the last run")
    arguments = ["match", "s.csv", "-", "--out", "o.ndjson"]
    rejecting = ["--on-error", "reject", "--rejects", "r.csv"]
    with earshot(folder, *arguments, *rejecting) as process:
        assert process.stdin is not None
        process.stdin.write(ndjson(message(1), message(2, x=500)))
        until = time.monotonic() + PATIENCE_S
        while len(list(folder.path.glob(".*.draft"))) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)
    assert [(folder / name).read_text() for name in outputs] == ["from the last run"] * 2
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert folder.names() == {"s.csv", "points.csv", *outputs}
    (folder / "m.ndjson").write_bytes(ndjson(message(1), message(2, x=500)))
    paths = [folder / each if "." in each else each for each in [*arguments, *rejecting]]
    code, _, err = folder.run(*(folder / "m.ndjson" if each == "-" else each for each in paths))
    assert (code, err) == (0, "")
    assert command_line.rows_in(folder / "o.ndjson") == [
        {"message_id": 1, "subscription_id": "ann"}
    ]
    assert folder.names() == {"s.csv", "points.csv", "m.ndjson", *outputs}  # no drafts


def test_a_draft_that_is_being_written_stays(folder: Folder) -> None:
    (folder / "m.ndjson").write_bytes(ndjson(message(1)))
    with (folder / ".o.csv.1.draft").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (folder / ".o.csv.2.draft").write_text("of a run that was killed")
        (folder / ".other.csv.2.draft").write_text("of something else")
        code, _, _ = folder.run(
            "match", folder / "s.csv", folder / "m.ndjson", "--out", folder / "o.csv"
        )
    assert code == 0
    assert {name for name in folder.names() if name.endswith(".draft")} == {
        ".o.csv.1.draft", ".other.csv.2.draft"
    }  # fmt: skip


def test_a_link_stays_a_link(folder: Folder) -> None:
    (folder / "m.ndjson").write_bytes(ndjson(message(1)))
    (folder / "real.csv").write_text("old")
    (folder / "o.csv").symlink_to("real.csv")
    arguments = ["match", folder / "s.csv", folder / "m.ndjson", "--out", folder / "o.csv"]
    assert folder.run(*arguments)[0] == 0
    assert (folder / "o.csv").is_symlink()
    assert (folder / "o.csv").readlink() == Path("real.csv")
    assert (folder / "real.csv").read_text() == '"message_id","subscription_id"\n1,"ann"\n'


# ---- rows in pieces ------------------------------------------------------------------------------


class Pieces:
    """Bytes that come a few at a time."""

    def __init__(self, content: bytes, sizes: Iterator[int]) -> None:
        self._content, self._sizes = content, sizes

    def read(self, _: int) -> bytes:
        size = next(self._sizes)
        data, self._content = self._content[:size], self._content[size:]
        return data

    def close(self) -> None:
        pass


def rows_of_pieces(
    content: bytes, sizes: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> list[list[str]]:
    monkeypatch.setattr(csv_files, "open_bytes", lambda _: Pieces(content, sizes))
    file = csv_files._File("-", "a stream", csv_files.Dialect())
    return [row for rows in csv_files._arriving_rows(file) for row in rows]


def test_csv_may_come_in_any_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    for _ in range(300):
        text = "".join(rng.choices(['"', '""', ",", "\n", "a", "b c"], k=rng.randint(1, 40)))
        content = f'id,text\n1,{text}\n2,"{text.replace(chr(34), chr(34) * 2)}"\n'.encode()
        try:
            whole = rows_of_pieces(content, repeat(1 << 20), monkeypatch)
        except InvalidFile:
            whole = None  # a quote is left open
        sizes = (rng.randint(1, 4) for _ in repeat(0))
        if whole is None:
            with pytest.raises(InvalidFile):
                rows_of_pieces(content, sizes, monkeypatch)
        else:
            assert rows_of_pieces(content, sizes, monkeypatch) == whole


@pytest.mark.parametrize("text", ["a line\n", 'they say ""fire""\n', "no end of line "])
def test_a_long_value_is_split_once_and_not_at_every_read(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_split = []
    reader = csv.reader

    def counting(lines: list[str], **options: Any) -> Any:
        n_split.append(sum(map(len, lines)))
        return reader(lines, **options)

    monkeypatch.setattr(csv, "reader", counting)
    content = f'id,text\n1,"{text * 20_000}",\n2,x\n'.encode()
    rows = rows_of_pieces(content, repeat(1000), monkeypatch)
    assert [row[0] for row in rows] == ["id", "1", "2"]
    assert sum(n_split) < 4 * len(content)


def test_a_named_pipe_has_the_format_of_its_name(tmp_path: Path) -> None:
    rows = {
        "p.csv": "id,text,x,y\n1,fire,0,0\n",
        "p": '{"id": 1, "text": "fire", "x": 0, "y": 0}\n',
    }
    for name, content in rows.items():
        os.mkfifo(tmp_path / name)
        writing = threading.Thread(target=(tmp_path / name).write_text, args=(content,))
        writing.start()
        (part,) = read_messages(tmp_path / name)
        writing.join()
        assert part.batch.column("text").to_pylist() == ["fire"]
    os.mkfifo(tmp_path / "p.parquet")
    with pytest.raises(InvalidFile, match=r"is a pipe, and '\.parquet' cannot be read"):
        read_messages(tmp_path / "p.parquet")
