"""Writes the generated parts of the documents; run it after a change of what they come from.

A part stands between ``<!-- name:begin -->`` and ``<!-- name:end -->``. A test compares the
documents with what this script would write.
"""

from __future__ import annotations

import inspect
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import is_dataclass
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from earshot import cli
from earshot.indexes import SEMANTICS, STRUCTURES, default_structure
from earshot.model.schemas import TYPES_IN_WORDS, Field, Relation, fields_of

DOCS = Path(__file__).resolve().parent
WIDTH = 88
"""Characters in a line of help and of a signature."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = (header, ["---"] * len(header), *rows)
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


# ---- columns of files ----------------------------------------------------------------------------


def columns_table(relation: Relation) -> str:
    """Return the columns of a relation, those of one meaning in one row.

    Changes have the columns of subscriptions as well, which are not repeated.
    """
    fields = [
        field
        for field in fields_of(relation, in_files=True)
        if relation != "changes" or "subscriptions" not in field.of
    ]
    rows = [
        [_names(group), _aliases(group), TYPES_IN_WORDS[group[0].type], group[0].of[relation]]
        for group in _groups(fields, relation)
    ]
    header = ["column", "also found as", "type", "meaning"]
    if not any(row[1] for row in rows):
        header, rows = [header[i] for i in (0, 2, 3)], [[row[0], *row[2:]] for row in rows]
    return table(header, rows)


def _groups(fields: list[Field], relation: Relation) -> list[list[Field]]:
    return [list(group) for _, group in groupby(fields, lambda f: (f.type, f.of[relation]))]


def _names(fields: list[Field]) -> str:
    return ", ".join(f"`{field.name}`" for field in fields)


def _aliases(fields: list[Field]) -> str:
    return "; ".join(", ".join(f"`{name}`" for name in field.aliases) for field in fields).strip(
        "; "
    )


# ---- structures ----------------------------------------------------------------------------------


def structures_table() -> str:
    """Return the structures of boolean and ranked matching, as the registry describes them."""
    defaults = {default_structure(semantics): semantics for semantics in SEMANTICS}
    rows = []
    for name, each in STRUCTURES.items():
        forms = [semantics for semantics in SEMANTICS if getattr(each, semantics) is not None]
        is_default = " (default)" if name in defaults else ""
        rows.append(
            [f"`{name}`", ", ".join(forms) + is_default, each.summary, each.paper, each.use]
        )
    return table(["name", "semantics", "what it is", "paper", "when to use"], rows)


def methods_table(semantics: str, registry: str) -> str:
    """Return a registry of a semantics: name, what it is and options, from the docstrings."""
    methods: dict[str, type] = getattr(import_module(f"earshot.semantics.{semantics}"), registry)
    rows = []
    for number, (name, method) in enumerate(methods.items()):
        summary = markdown(inspect.getdoc(method) or "").partition("\n")[0].rstrip(".")
        is_default = "" if number else " (default)"
        options = ", ".join(
            f"`{each.name}`" for each in inspect.signature(method).parameters.values()
        )
        rows.append([f"`{name}`{is_default}", summary, options])
    return table(["name", "what it is", "parameters"], rows)


# ---- the command line ----------------------------------------------------------------------------


def help_of(command: Sequence[str]) -> str:
    """Return what ``--help`` of a command says."""
    text, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH + 2)  # argparse leaves two free
    try:
        with redirect_stdout(text):
            cli.main([*command, "--help"])
    except SystemExit:
        pass
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    return text.getvalue()


def commands_of(text: str) -> list[str]:
    """Return the commands that a help text lists."""
    if not text.partition("\n")[0].endswith("..."):
        return []
    return re.findall(r"^    (\w+)  +\w", text, re.MULTILINE)


def commands_text() -> str:
    """Return the help of every command."""
    sections = []
    waiting: list[list[str]] = [[]]
    while waiting:
        command = waiting.pop(0)
        text = help_of(command)
        inner = commands_of(text)
        waiting = [[*command, name] for name in inner] + waiting
        if not inner:
            name = " ".join(["earshot", *command])
            sections.append(f"## {name}\n\n```text\n{text.rstrip()}\n```")
    return "\n\n".join(sections)


# ---- the reference -------------------------------------------------------------------------------


def reference_of(module_name: str) -> str:
    """Return the reference of a module's public names, from their docstrings."""
    module = import_module(module_name)
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if inspect.isclass(value)
    ]
    parts = []
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value):
            parts.append(_class_text(name, value))
        elif callable(value):
            parts.append(f"### `{name}`\n\n{_signature(name, value)}\n\n{_documented(value)}")
        elif not isinstance(value, str):  # a union of types; the version needs no entry
            kinds = ", ".join(f"`{each.__name__}`" for each in value.__args__)
            parts.append(f"### `{name}`\n\nOne of {kinds}.")
    return "\n\n".join(parts)


def _class_text(name: str, value: type) -> str:
    bases = [base.__name__ for base in value.__bases__ if base is not object]
    parts = [f"### `{name}`"]
    if issubclass(value, Exception) and not is_dataclass(value):
        parts[0] += f" ({', '.join(f'`{base}`' for base in bases)})"
    else:
        parts.append(_signature(name, value, is_private_left_out=True))
    parts.append(_documented(value))
    for member, found in _members(value).items():
        function = found.__func__ if isinstance(found, classmethod) else found
        if member.startswith("_"):
            continue
        if inspect.isfunction(function):
            parts.append(f"#### `{name}.{member}`")
            parts += [_signature(f"{name}.{member}", getattr(value, member)), _documented(function)]
        elif isinstance(function, property) or hasattr(function, "func"):
            getter = function.fget if isinstance(function, property) else function.func
            returns = getter.__annotations__.get("return", "")
            parts.append(f"**`{name}.{member}`**: `{returns}`. {_documented(getter)}")
    return "\n\n".join(part for part in parts if part)


def _members(value: type) -> dict[str, Any]:
    """Return what a class has, with what it takes from the parts that it is made of."""
    parts = [each for each in value.__mro__[1:] if each.__module__.startswith("earshot.engine")]
    return {name: found for each in (value, *parts) for name, found in vars(each).items()}


def _signature(name: str, value: Any, *, is_private_left_out: bool = False) -> str:
    """Return a signature as it stands in the source, one parameter a line if it is long."""
    signature = inspect.signature(value)
    parameters, is_keyword_only = list[str](), False
    for each in signature.parameters.values():
        if each.name == "self" or (is_private_left_out and each.name.startswith("_")):
            continue
        if each.kind is each.KEYWORD_ONLY and not is_keyword_only:
            parameters.append("*")
            is_keyword_only = True
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(each.kind.name, "")
        text = f"{stars}{each.name}"
        if each.annotation is not each.empty:
            text += f": {_annotation(each.annotation)}"
        if each.default is not each.empty:
            text += f" = {each.default!r}"
        parameters.append(text)
    returns = ""
    if not inspect.isclass(value) and signature.return_annotation is not signature.empty:
        returns = f" -> {_annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){returns}"
    return f"```text\n{line}\n```"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _documented(value: Any) -> str:
    if inspect.isclass(value) and (value.__doc__ or "").startswith(f"{value.__name__}("):
        return ""  # made up by dataclass
    return markdown(inspect.getdoc(value) or "")


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: roles become code, sections of arguments become lists."""
    text = re.sub(r":\w+:`~?([\w.]+)`", lambda found: f"`{found[1].split('.')[-1]}`", docstring)
    text = text.replace("``", "`")
    lines = list[str]()
    is_section = False
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Attributes|Returns|Raises|Yields):", line):
            is_section = True
            lines += [f"**{line}**", ""]
        elif is_section and (found := re.match(r"    (\w+): (.*)", line)):
            lines.append(f"- `{found[1]}`: {found[2]}")
        elif is_section and line.startswith("    "):
            lines.append(f"  {line.strip()}" if line.startswith("        ") else line.strip())
        else:
            is_section = is_section and not line
            lines.append(line)
    return "\n".join(lines).strip()


# ---- pipelines -----------------------------------------------------------------------------------


def keys_table() -> str:
    """Return the keys of a pipeline's file."""
    config = import_module("earshot.spark.config")

    def rows(kind: Any, name_of_table: str, condition: str) -> Iterator[list[str]]:
        tables = []
        keys = config.keys_of(kind)
        first = next(iter(keys))
        for name, (facts, hint) in keys.items():
            only_for = " or ".join(map(config.as_toml, facts.only_for))
            only = f" (with `{first} = {only_for}`)" if only_for else condition
            if is_dataclass(hint):
                tables.append((hint, f"`[{name}]`", only))
                continue
            default = "required" if facts.is_required else config.as_toml(facts.default)
            kind_of_value = config.type_name(hint)
            yield [name_of_table, f"`{name}`", kind_of_value, default, f"{facts.meaning}{only}"]
        for each in tables:
            yield from rows(*each)

    header = ["table", "key", "value", "default", "meaning"]
    return table(header, rows(config.PipelineConfig, "", ""))


def settings_table() -> str:
    """Return the settings of Spark that differ from its defaults."""
    rows = [
        [f"`{name}`", f"`{each.value}`", f"{each.reason}{' *(local)*' if each.local else ''}"]
        for name, each in import_module("earshot.spark.session").SETTINGS.items()
    ]
    return table(["setting", "value", "why"], rows)


# ---- the documents -------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], str]] = {
    **{
        f"columns of {relation}": partial(columns_table, relation)
        for relation in ("subscriptions", "messages", "changes", "positions", "updates", "rejects")
    },
    "structures": structures_table,
    "disseminations": partial(methods_table, "topk", "DISSEMINATIONS"),
    "reevaluations": partial(methods_table, "topk", "REEVALUATIONS"),
    "structures of moving": partial(methods_table, "moving", "STRUCTURES"),
    "commands": commands_text,
    "keys of a pipeline": keys_table,
    "settings of a session": settings_table,
    **{
        f"reference of {module}": partial(reference_of, module)
        for module in ("earshot", "earshot.spark", "earshot.errors")
    },
}


def generated(document: str) -> str:
    """Return a document with its generated parts as they should be."""

    def part(found: re.Match[str]) -> str:
        return f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}"

    pattern = r"(<!-- ([\w. ]+):begin -->)\n.*?\n?(<!-- \2:end -->)"
    return re.sub(pattern, part, document, flags=re.S)


def main() -> None:
    """Write all documents anew."""
    for path in sorted(DOCS.rglob("*.md")):
        path.write_text(generated(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
