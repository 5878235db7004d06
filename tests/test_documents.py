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
from typing import Any, NamedTuple, get_args

import pytest

import earshot
import earshot.spark
from earshot import errors
from earshot.cli import main
from earshot.indexes import STRUCTURES
from earshot.model.schemas import UPDATE_FIELDS, Content, Relation, fields_of
from earshot.semantics import SEMANTICS
from earshot.semantics.topk import DISSEMINATIONS, REEVALUATIONS

ROOT = Path(__file__).resolve().parents[1]
RUN = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [*RUN, ROOT / "CHANGELOG.md", ROOT / "bench" / "README.md"]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAPERS = ("KDD13", "TKDE15", "CIKM15", "VLDBJ15", "PVLDB16")
README_LINES = 120
GENERATE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "generate.py"))

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


def test_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        named = re.findall(r"\bmake ([a-z]+)   ", path.read_text(encoding="utf-8"))
        assert set(named) <= targets, path


# ---- nothing is left out ------------------------------------------------------------------------


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*STRUCTURES, *DISSEMINATIONS, *REEVALUATIONS])
def test_structures_are_documented(name: str) -> None:
    assert re.search(rf"^\| `{name}`[ (\w)]* \|", text_of("structures.md"), re.MULTILINE)
    if name != "scan":  # no paper has it
        assert f"`{name}`" in text_of("papers.md")


@pytest.mark.parametrize("name", SEMANTICS)
def test_every_semantics_has_a_page(name: str) -> None:
    assert (ROOT / "docs" / "semantics" / f"{name}.md").exists()
    assert f"(semantics/{name}.md)" in text_of("semantics.md")


def test_columns_of_updates_are_documented() -> None:
    section = text_of("semantics.md").partition("## Updates")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == UPDATE_FIELDS


def test_rooms_are_documented() -> None:
    section = text_of("architecture.md").partition("## Rooms")[2].partition("\n## ")[0]
    rooms = re.findall(r"^\| `src/earshot/([\w.]+)/?` \|", section, re.MULTILINE)
    package = ROOT / "src" / "earshot"
    found = {path.parent.name for path in package.glob("*/__init__.py")}
    found |= {path.name for path in package.glob("*.py") if not path.name.startswith("__")}
    assert len(rooms) == len(set(rooms))
    assert set(rooms) == found


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("earshot", set(earshot.__all__) - {"__version__"}),
        ("earshot.spark", set(earshot.spark.__all__)),
        ("earshot.errors", {name for name, each in vars(errors).items() if isinstance(each, type)}),
    ],
)
def test_public_names_are_in_the_reference(module: str, names: set[str]) -> None:
    section = text_of("reference.md").partition(f"reference of {module}:begin")[2]
    section = section.partition(":end")[0]
    assert set(re.findall(r"^### `(\w+)`", section, re.MULTILINE)) == names


def test_errors_are_documented() -> None:
    table = text_of("semantics.md").partition("## Errors")[2]
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
    found = []
    waiting: list[list[str]] = [[]]
    while waiting:
        command = waiting.pop()
        text = help_of(command, capsys)
        inner = re.findall(r"^    (\w+)  +\w", text, re.MULTILINE)
        if text.partition("\n")[0].endswith("..."):
            assert inner
            waiting += [[*command, name] for name in inner]
            continue
        found.append(" ".join(["earshot", *command]))
        section = text_of("cli.md").partition(f"## {found[-1]}\n")[2].partition("\n## ")[0]
        for option in set(re.findall(r"--[a-z][a-z-]+", text)):
            assert option in section, (found[-1], option)
    assert "earshot index build" in found
    assert "earshot bench run" in found


def test_options_of_the_benchmark_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    for command in ("run", "report"):
        text = help_of(["bench", command], capsys)
        for option in set(re.findall(r"--[a-z][a-z-]+", text)) - {"--help"}:
            assert option in benchmark, option


@pytest.mark.parametrize("path", RUN[1:], ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_parts_are_up_to_date(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert GENERATE["generated"](text) == text, "run make docs"
    assert text.count(":begin -->") == text.count(":end -->")


@pytest.mark.parametrize("relation", [*get_args(Content), "updates", "rejects"])
def test_columns_are_documented(relation: Relation) -> None:
    table = text_of("files.md").partition(f"columns of {relation}:begin")[2].partition(":end")[0]
    own = "subscriptions" if relation == "changes" else relation
    for field in fields_of(relation, in_files=True):
        if relation == own or own not in field.of:
            assert all(f"`{name}`" in table for name in (field.name, *field.aliases)), field.name


@pytest.mark.parametrize("key", PAPERS)
def test_files_that_cite_a_paper_are_in_the_map(key: str) -> None:
    papers = text_of("papers.md")
    assert re.search(rf"^\| {key} \|", papers, re.MULTILINE)
    for path in (ROOT / "src" / "earshot").rglob("*.py"):
        if key in path.read_text(encoding="utf-8"):
            assert f"`{path.relative_to(ROOT)}`" in papers


def test_version_has_a_changelog_entry() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {earshot.__version__}" in changelog


@each_document
def test_names_that_are_gone_are_not_mentioned(path: Path) -> None:
    gone = r"Topk[E]ngine|earshot topk\b|\btry_\w+_batch|--index\b|\bindex=|\branking=|Deliveries"
    if path.name != "CHANGELOG.md":  # which says that they went
        assert not re.search(gone, path.read_text(encoding="utf-8"), re.IGNORECASE)
