"""The file that describes a pipeline: what it may say, and what is said about mistakes."""

from __future__ import annotations

import re
import tomllib
from dataclasses import is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from earshot.errors import InvalidFile
from earshot.model.moving import Moving
from earshot.model.ranking import Ranking
from earshot.model.topk import TopK
from earshot.spark.config import (
    ChangesConfig,
    MergeConfig,
    MessagesConfig,
    PipelineConfig,
    RejectsConfig,
    ResultsConfig,
    SinkConfig,
    SubscriptionsConfig,
    TriggerConfig,
    keys_of,
    read_config,
    type_name,
)

LEAST = """
index = "index"
checkpoint = "checkpoint"
[messages]
source = "files"
path = "messages"
[sink]
kind = "console"
"""

ALL = """
semantics = "ranked"
alpha = 0
threshold = 0.25
index = "s3://bucket/index"
checkpoint = "/var/checkpoint"
[subscriptions]
path = "subscriptions.parquet"
columns = { id = "key" }
ids = "integer"
on_error = "reject"
placement = "sharded"
n_shards = 4
space = "planar"
language = "en"
stem = true
stop_words = true
structure = "rt_tree"
[messages]
source = "kafka"
servers = "a:9092,b:9092"
topic = "messages"
start = "latest"
records_per_batch = 1000
options = { "kafka.security.protocol" = "SSL", failOnDataLoss = false }
columns = { x = "lon", y = "lat" }
ids = "integer"
place = "box"
[changes]
source = "files"
path = "changes"
pattern = "*.ndjson"
files_per_batch = 3
[sink]
kind = "files"
path = "out"
format = "ndjson"
shape = "lists"
carry = ["time"]
keep_unmatched = true
[rejects]
path = "rejects"
format = "parquet"
[trigger]
interval = "500 milliseconds"
[merge]
share = 1
least = 10
[spark]
"spark.driver.memory" = "8g"
spark.sql.shuffle.partitions = 7
spark.ui.enabled = true
"""

TOPK = """
semantics = "topk"
window = "10m"
k = 5
alpha = 0.25
max_distance = "50km"
lateness = "30s"
index = "index"
checkpoint = "checkpoint"
[subscriptions]
path = "subscriptions.parquet"
[messages]
source = "files"
path = "messages"
[sink]
kind = "console"
[results]
path = "results"
every = 3
[snapshots]
every = 8
"""

MOVING = """
semantics = "moving"
lifetime = "2h"
index = "index"
checkpoint = "checkpoint"
[messages]
source = "files"
path = "messages"
[positions]
source = "files"
path = "positions"
[sink]
kind = "console"
"""


def read(tmp_path: Path, text: str) -> PipelineConfig:
    (tmp_path / "p.toml").write_text(text)
    return read_config(tmp_path / "p.toml")


def test_the_least_that_a_file_has_to_say(tmp_path: Path) -> None:
    config = read(tmp_path, LEAST)
    assert config == PipelineConfig(
        tmp_path / "p.toml",
        index=str(tmp_path / "index"),
        checkpoint=str(tmp_path / "checkpoint"),
        messages=MessagesConfig(source="files", path=str(tmp_path / "messages")),
        sink=SinkConfig(kind="console"),
    )
    assert (config.subscriptions, config.changes, config.rejects) == (None, None, None)
    assert (config.semantics, config.settings) == (None, None)
    assert not config.uses_kafka


def test_every_key_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, ALL)
    assert config == PipelineConfig(
        tmp_path / "p.toml",
        index="s3://bucket/index",
        checkpoint="/var/checkpoint",
        subscriptions=SubscriptionsConfig(
            str(tmp_path / "subscriptions.parquet"), {"id": "key"}, "integer", "reject", "sharded",
            4, "planar", "en", True, True, "rt_tree", Ranking(0, 0.25),
        ),
        semantics="ranked",
        alpha=0.0,
        threshold=0.25,
        messages=MessagesConfig(
            source="kafka", servers="a:9092,b:9092", topic="messages", start="latest",
            records_per_batch=1000, columns={"x": "lon", "y": "lat"}, ids="integer",
            place="box", options={"kafka.security.protocol": "SSL", "failOnDataLoss": "false"},
        ),
        changes=ChangesConfig(
            source="files", path=str(tmp_path / "changes"), pattern="*.ndjson", files_per_batch=3
        ),
        sink=SinkConfig(
            kind="files", path=str(tmp_path / "out"), format="ndjson", shape="lists",
            carry=("time",), keep_unmatched=True,
        ),
        rejects=RejectsConfig(str(tmp_path / "rejects"), "parquet"),
        trigger=TriggerConfig("500 milliseconds"),
        merge=MergeConfig(1.0, 10),
        spark={
            "spark.driver.memory": "8g", "spark.sql.shuffle.partitions": "7",
            "spark.ui.enabled": "true",
        },
    )  # fmt: skip
    assert config.uses_kafka


def test_options_of_semantics_stand_beside_it(tmp_path: Path) -> None:
    config = read(tmp_path, TOPK)
    wanted = TopK(timedelta(minutes=10), 5, 0.25, 50_000.0, timedelta(seconds=30))
    assert config.settings == wanted
    assert config.subscriptions is not None
    assert config.subscriptions.semantics == wanted
    assert config.results == ResultsConfig(str(tmp_path / "results"), "parquet", 3)
    assert config.snapshots.every == 8
    config = read(tmp_path, MOVING)
    assert config.settings == Moving(timedelta(hours=2))
    assert config.positions is not None
    assert config.positions.path == str(tmp_path / "positions")


def test_every_key_has_its_meaning() -> None:
    tables = {"": keys_of(PipelineConfig)}
    for name, (_, hint) in tables[""].items():
        if is_dataclass(hint):
            tables[name] = keys_of(hint)
    found = {(table, name): each for table in tables for name, each in tables[table].items()}
    assert all(facts.meaning for facts, _ in found.values())
    assert all(is_dataclass(hint) or type_name(hint) for _, hint in found.values())
    described = {**tomllib.loads(MOVING), **tomllib.loads(TOPK), **tomllib.loads(ALL)}
    inner = {name: value for name, value in described.items() if name in tables}
    used = {("", name) for name in described}
    used |= {(table, name) for table in inner for name in inner[table]}
    assert used <= set(found)
    # What is for Kafka or for files only is in one of two tables above.
    assert {name for _, name in set(found) - used} <= {name for _, name in used} | {"once", "kind"}
    topic, kind = found["messages", "topic"]
    assert (topic.meaning, topic.is_required, topic.only_for) == ("the topic", True, ("kafka",))
    assert type_name(kind) == "a string"
    formats, kind = found["sink", "format"]
    assert (type_name(kind), formats.default) == ('"parquet" or "ndjson"', "parquet")
    assert found["trigger", "once"][0].default is False


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("index =", "indx =", r"unknown key indx; did you mean index\? expected one of sem"),
        ("[sink]", "[sinks]", r"unknown key table \[sinks\]; did you mean sink\?"),
        ("source =", "sorce =", r"unknown key sorce in \[messages\]; did you mean source\?"),
        ('kind = "console"', "", r'kind in \[sink\] is missing: .*; expected "files" or "kafka"'),
        ('index = "index"', "", "index is missing: directory of the index"),
        ('[messages]\nsource = "files"\npath = "messages"', "", r"table \[messages\] is missing"),
        ('"files"', '"fils"', r'source in \[messages\] is "fils"; did you mean files\?'),
        ('path = "messages"', "", r"path in \[messages\] is missing"),
        ('path = "messages"', "path = 3", r"path in \[messages\] is 3; expected a string"),
        ('path = "messages"', 'path = ""', r"path in \[messages\] is empty; expected a path"),
        ('path = "messages"', 'path = "dbfs:/m"', r"path in \[messages\]: dbfs:/m: .*/dbfs/"),
        ('path = "messages"', 'path = "s3a:/b/m"', "s3a:/b/m: two slashes come after s3a:"),
        ('path = "messages"', 'path = "ftp://host/m"', "ftp://host/m cannot be reached"),
        (
            'path = "messages"', 'path = "m"\ntopic = "t"',
            r'topic in \[messages\] is for source = "kafka", and source is "files"; leave it out',
        ),
        ('path = "messages"', 'path = "./"', r"path in \[messages\] is .*, and index is .*index"),
        ("[sink]", '[rejects]\npath = "messages/rejects"\n[sink]',
         r"path in \[messages\] is .*, and path in \[rejects\] is .* not in each other"),
        ('index = "index"', 'index = "p.toml"',
         r'index is ".*p.toml", which is a file; choose a directory'),
        ('path = "messages"', 'path = "p.toml"', r"path in \[messages\] is .* a file"),
        ("[sink]", '[changes]\nsource = "files"\npath = "messages"\n[sink]',
         r"path in \[messages\] is .*, and path in \[changes\] is .*"),
        ("[messages]", "semantics = 'rankd'\n[messages]",
         r'semantics is "rankd"; did you mean ranked\? expected one of boolean, ranked'),
        ("checkpoint", "semantics = 'ranked'\nalpha = 2\ncheckpoint",
         "alpha is 2.0; expected a number from 0 to 1"),
        ("checkpoint", "alpha = 1\ncheckpoint",
         r'alpha is for semantics = "ranked" or "topk"; leave it out'),
        ("checkpoint", "semantics = 'topk'\ncheckpoint", "window is missing: the last so many"),
        ("checkpoint", "semantics = 'topk'\nwindow = '1x'\ncheckpoint",
         "window is '1x'; expected a number of messages, or a time such as 30s"),
        ("checkpoint", "semantics = 'moving'\nlifetime = '0s'\ncheckpoint",
         "lifetime is .*; expected a timedelta greater than 0"),
        ("[sink]", '[positions]\nsource = "files"\n[sink]',
         r'table \[positions\] is for semantics = "moving"; leave it out'),
        ("[sink]", '[subscriptions]\npath = "s"\nstructure = "block_lists"\n[sink]',
         r'structure in \[subscriptions\] is "block_lists"; .* block_trie'),
        ("[messages]", "merge = 3\n[messages]", r"merge is 3; expected a table \[merge\]"),
        ("[messages]", "spark = 3\n[messages]", r"spark is 3; expected a table \[spark\]"),
        ('kind = "console"', 'kind = "kafka"\nservers = "a"\ntopic = "t"\noptions = 3',
         r"options in \[sink\] is 3; expected a table \[sink.options\]"),
        ("[sink]", "columns = { x = 3 }\n[sink]",
         r"columns in \[messages\] is { x = 3 }; expected a table of strings"),
        ("[sink]", "files_per_batch = 0\n[sink]",
         r"files_per_batch in \[messages\] is 0; expected 1 or more"),
        ("[sink]", "files_per_batch = true\n[sink]",
         r"files_per_batch in \[messages\] is true; expected an integer"),
        ('kind = "console"', 'kind = "console"\ncarry = "time"', "expected a list of strings"),
        ('kind = "console"', 'kind = "console"\nkeep_unmatched = true', 'is for shape = "lists"'),
        ("[sink]", '[trigger]\ninterval = "1 second"\nonce = true\n[sink]', "exclude each other"),
        ("[sink]", '[trigger]\ninterval = "fast"\n[sink]', r'interval in \[trigger\] is "fast"'),
        ("[sink]", "[merge]\nshare = 0\n[sink]", r"share in \[merge\] is 0.0; expected more"),
        ("[sink]", '[subscriptions]\npath = "s"\nstructure = "blok_trie"\n[sink]',
         r"did you mean block_trie\?"),
        ("[sink]", '[subscriptions]\npath = "s"\nplacement = "replicated"\nn_shards = 2\n[sink]',
         "n_shards in"),
        ("[sink]", "[spark]\nspark.jars = [1]\n[sink]", r"spark.jars is \[1\]; expected a string"),
        ("index =", "index", "is not TOML: "),
    ],
)  # fmt: skip
def test_mistakes_are_refused_in_one_sentence(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    assert old in LEAST
    with pytest.raises(InvalidFile) as caught:
        read(tmp_path, LEAST.replace(old, new, 1))
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'p.toml'}: ")
    assert re.search(reason, said), said
    assert "\n" not in said


def test_patterns_tell_files_of_a_directory_apart(tmp_path: Path) -> None:
    changes = '[changes]\nsource = "files"\npath = "."\npattern = "c*.csv"\n[sink]'
    text = LEAST.replace("[sink]", changes).replace('"messages"', '"."\npattern = "m*.csv"')
    assert read(tmp_path, text).changes is not None


def test_a_home_of_nobody_is_a_name(tmp_path: Path) -> None:
    config = read(tmp_path, LEAST.replace('"messages"', '"~nobody-there/m"'))
    assert config.messages.path == str(tmp_path / "~nobody-there" / "m")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"p\.toml: cannot be read: No such file"):
        read_config(tmp_path / "p.toml")


@pytest.mark.parametrize("part", ["messages", "changes", "sink"])
def test_any_part_may_use_kafka(tmp_path: Path, part: str) -> None:
    kafka = 'servers = "a:1"\ntopic = "t"\n'
    texts: dict[str, Any] = {
        "messages": LEAST.replace(
            'source = "files"\npath = "messages"', f'source = "kafka"\n{kafka}'
        ),
        "changes": f'{LEAST}[changes]\nsource = "kafka"\n{kafka}',
        "sink": LEAST.replace('"console"', f'"kafka"\n{kafka}'),
    }  # fmt: skip
    assert read(tmp_path, texts[part]).uses_kafka
