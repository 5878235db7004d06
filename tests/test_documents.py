"""The documents are true: snippets and examples run, links resolve, and nothing is left out.

In README and docs, fenced blocks are run in order, each document in a directory of its own:

- ``python`` is executed; a ``text`` block right after it is what it prints;
- a block with ``file=name`` is written to that file;
- ``console`` holds ``$ earshot …`` and ``$ cat …`` with their output. Times and rates may differ.
"""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, get_args

import pytest

from earshot import errors
from earshot.cli import main
from earshot.indexes import default_structure, structures_of
from earshot.model.schemas import Content, Relation, fields_of

ROOT = Path(__file__).resolve().parents[1]
RUN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS = [*RUN, ROOT / "CHANGELOG.md", ROOT / "bench" / "README.md"]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAPERS = ("KDD13", "TKDE15", "CIKM15", "VLDBJ15", "PVLDB16")

each_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)


class Block(NamedTuple):
    language: str
    file: str  # "" where the block is not the content of one
    line: int
    text: str
    shown_after: str  # content of a ``text`` block right below, "" where there is none


def blocks_of(path: Path) -> list[Block]:
    """Return the fenced blocks of a document."""
    blocks = list[Block]()
    info, start, end, lines = "", 0, 0, list[str]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif start:
            language, _, file = info.partition(" file=")
            text = "\n".join(lines) + "\n"
            if language == "text" and blocks and start - end <= 2:
                blocks[-1] = blocks[-1]._replace(shown_after=text)
            blocks.append(Block(language, file, start, text, ""))
            start, end = 0, number
        else:
            info, start, lines = line[3:], number, []
    assert not start, f"{path}: the block at line {start} is never closed"
    return blocks


# ---- what runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RUN, ids=lambda path: str(path.relative_to(ROOT)))
def test_snippets_run(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "earshot.spark" in path.read_text(encoding="utf-8"):
        start_spark_in(tmp_path)
    # A module, so that classes defined in a snippet can be pickled.
    module = ModuleType("snippets")
    monkeypatch.setitem(sys.modules, "snippets", module)
    for block in blocks_of(path):
        where = f"{path.name}, line {block.line}"
        if block.file:
            Path(block.file).parent.mkdir(exist_ok=True)
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            # As if the block stood in the document, so that tracebacks show its line.
            source = "\n" * block.line + block.text
            exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
            assert capsys.readouterr().out == block.shown_after, where
        elif block.language == "console":
            for command, expected in commands_of(block.text):
                found, wanted = masked(output_of(command, capsys)), masked(expected)
                if command.startswith("cat "):  # the order within a message is unspecified
                    found, wanted = in_order(found), in_order(wanted)
                assert found == wanted, f"{where}: {command}"
        else:
            assert block.language in ("text", "sh"), f"{where}: {block.language!r} is not run"


def start_spark_in(directory: Path) -> None:
    """Let Spark take paths from this directory: its JVM stays in the one that it was started in."""
    from earshot.spark import local_session

    jvm = local_session("local[2,4]")._jvm
    assert jvm is not None
    hadoop = jvm.org.apache.hadoop
    files = hadoop.fs.FileSystem.get(hadoop.conf.Configuration())
    files.setWorkingDirectory(hadoop.fs.Path(str(directory)))


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a session with its output."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def output_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    program, *arguments = shlex.split(command)
    if program == "cat":
        return "".join(Path(name).read_text(encoding="utf-8") for name in arguments)
    assert program == "earshot"
    code = main(arguments)
    captured = capsys.readouterr()
    assert (code == 0) == (captured.err == "")
    return captured.out + captured.err


def in_order(lines: str) -> str:
    return "".join(sorted(lines.splitlines(keepends=True)))


def masked(output: str) -> str:
    """Replace what depends on the machine: seconds, rates, and bytes that are not a promise."""
    output = re.sub(r"[\d.,]+ (m?s)\b", r"… \1", output)
    output = re.sub(r"[\d.,]+ (messages|updates)/s", r"… \1/s", output)
    return re.sub(r"^(\w+_bytes|open_s): .*", r"\1: …", output, flags=re.MULTILINE)


def test_documents_have_snippets() -> None:
    languages = [block.language for path in RUN for block in blocks_of(path)]
    assert languages.count("python") > 10
    assert languages.count("console") > 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    captured = capsys.readouterr()
    assert captured.out.count("\n") >= 4
    assert "False" not in captured.out.replace("in the directory: False", "")


# ---- links and names ----------------------------------------------------------------------------


def links_of(path: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"\[[^\]]+\]\(([^)\s]+)\)", prose)


def anchors_of(path: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@each_document
def test_links_resolve(path: Path) -> None:
    for link in links_of(path):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@each_document
def test_paths_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:src|tests|docs|examples|bench)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), name


def test_readme_links_all_documents_and_examples() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links_of(ROOT / "README.md")}
    assert set(RUN[1:]) | set(EXAMPLES) | {ROOT / "LICENSE", ROOT / "CHANGELOG.md"} <= linked


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        named = re.findall(r"\bmake ([a-z]+)   ", path.read_text(encoding="utf-8"))
        assert set(named) <= targets, path


# ---- nothing is left out ------------------------------------------------------------------------


@pytest.mark.parametrize("name", structures_of("boolean"))
def test_indexes_are_documented(name: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| `{name}` \|", readme, re.MULTILINE)
    assert f"`{name}`" in (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", structures_of("ranked"))
def test_ranked_indexes_are_documented(name: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("### Ranked indexes")[2].partition("##")[0]
    assert re.search(rf"^\| `{name}` \|", table, re.MULTILINE)


def test_the_defaults_come_first() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for heading, semantics in (("## Indexes", "boolean"), ("### Ranked indexes", "ranked")):
        name = default_structure(semantics)
        table = readme.partition(heading)[2].partition("##")[0]
        assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)[0] == name


def test_only_indexes_that_exist_are_documented() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## Indexes")[2].partition("##")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(structures_of("boolean"))


def test_errors_are_documented() -> None:
    semantics = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")
    table = semantics.partition("## Errors")[2]
    documented = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", table, re.MULTILINE))
    classes = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
    assert set(documented) == set(classes)
    for name, builtin in documented.items():
        assert builtin in {base.__name__ for base in classes[name].__mro__}, name


def help_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_commands_and_options_are_documented(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    benchmark = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    found = []
    waiting: list[list[str]] = [[]]
    while waiting:
        command = waiting.pop()
        text = help_of(command, capsys)
        inner = re.findall(r"^    (\w+)  +\w", text, re.MULTILINE)
        if "COMMAND" in text.partition("\n")[0]:
            assert inner
            waiting += [[*command, name] for name in inner]
            continue
        found.append(" ".join(["earshot", *command]))
        assert f"`{found[-1]}`" in readme
        for option in set(re.findall(r"--[a-z][a-z-]+", text)) - {"--help"}:
            assert f"`{option}`" in (benchmark if command == ["bench"] else files), option
    assert "earshot index build" in found
    assert "earshot bench" in found


@pytest.mark.parametrize("path", RUN[1:], ids=lambda path: path.name)
def test_generated_parts_are_up_to_date(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    generated = runpy.run_path(str(ROOT / "docs" / "generate.py"))["generated"]
    assert generated(text) == text, "run python docs/generate.py"
    assert text.count(":begin -->") == text.count(":end -->")


@pytest.mark.parametrize("relation", [*get_args(Content), "updates", "rejects"])
def test_columns_are_documented(relation: Relation) -> None:
    text = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    table = text.partition(f"columns of {relation}:begin")[2].partition(":end")[0]
    own = "subscriptions" if relation == "changes" else relation
    for field in fields_of(relation, in_files=True):
        if relation == own or own not in field.of:
            assert all(f"`{name}`" in table for name in (field.name, *field.aliases)), field.name


@pytest.mark.parametrize("key", PAPERS)
def test_files_that_cite_a_paper_are_in_the_map(key: str) -> None:
    papers = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| {key} \|", papers, re.MULTILINE)
    for path in (ROOT / "src" / "earshot").rglob("*.py"):
        if key in path.read_text(encoding="utf-8"):
            assert f"`{path.relative_to(ROOT)}`" in papers


def test_version_has_a_changelog_entry() -> None:
    import earshot

    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {earshot.__version__}" in changelog
