#!/usr/bin/env python3
"""Writes specconv/reports.py: the reports of schemas/json as dataclasses. With --check, only compares.

usage: generate_reports.py [--check]
"""

import json
import keyword
import pathlib
import re
import sys
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
SCHEMAS = HERE.parent / "schemas" / "json"
OUT = HERE / "specconv" / "reports.py"

HEADER = '''"""Reports of the commands as dataclasses. Generated from schemas/json by generate_reports.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Optional, Union

'''

SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


class Generator:
    def __init__(self):
        self.classes = {}
        self.aliases = {}

    def add(self, name, schema):
        """Declares a class or a type alias, once."""
        if schema.get("type") == "object" and "properties" in schema:
            self.classes[name] = schema
        else:
            self.aliases[name] = schema

    def type(self, schema):
        """Returns the annotation of a value."""
        if "$ref" in schema:
            return schema["$ref"].rsplit("/", 1)[-1]
        if "const" in schema:
            return f"Literal[{json.dumps(schema['const'])}]"
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return union([self.type(option) for option in schema[key]])
        kind = schema.get("type")
        if isinstance(kind, list):
            return union([self.type({**schema, "type": one}) for one in kind])
        if kind == "array":
            return f"list[{self.type(schema['items'])}]"
        if kind == "object":
            values = schema.get("additionalProperties")
            return f"dict[str, {self.type(values) if isinstance(values, dict) else 'Any'}]"
        return SIMPLE.get(kind, "Any")

    def load(self, schema, value):
        """Returns the expression that makes a value from JSON."""
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[-1]
            return f"{name}.from_dict({value})" if name in self.classes else value
        if "anyOf" in schema:
            options = [option for option in schema["anyOf"] if option.get("type") != "null"]
            if len(options) == 1 and self.load(options[0], "v") != "v":
                made = self.load(options[0], "found")
                return f"None if (found := {value}) is None else {made}"
            return value
        kind = schema.get("type")
        kinds = kind if isinstance(kind, list) else [kind]
        if "array" in kinds and self.load(schema["items"], "v") != "v":
            nullable = "null" in kinds
            made = f"[{self.load(schema['items'], 'v')} for v in {'found' if nullable else value}]"
            return f"None if (found := {value}) is None else {made}" if nullable else made
        values = schema.get("additionalProperties")
        if "object" in kinds and isinstance(values, dict) and self.load(values, "v") != "v":
            return f"{{k: {self.load(values, 'v')} for k, v in {value}.items()}}"
        return value

    def text(self):
        parts = [HEADER]
        for name, schema in sorted(self.aliases.items()):
            parts.append(f"{name} = {self.type(schema)}\n{doc(schema, str())}\n")
        for name, schema in sorted(self.classes.items()):
            parts.append(self.class_text(name, schema))
        parts.append("\n__all__ = [\n")
        parts.extend(f'    "{name}",\n' for name in sorted([*self.aliases, *self.classes]))
        parts.append("]\n")
        return "".join(parts)

    def class_text(self, name, schema):
        lines = [f"\n\n@dataclass(frozen=True)\nclass {name}:\n", doc(schema, "    ")]
        loads = []
        for key, value in schema["properties"].items():
            field = key + "_" * keyword.iskeyword(key)
            lines.append(f"\n    {field}: {self.type(value)}\n{doc(value, '    ')}")
            found = f'data["{key}"]'
            if "default" in value or key not in schema.get("required", []):
                # Empty lists and maps are left out of some reports.
                empty = {"array": [], "object": {}}.get(str(value.get("type")))
                found = f'data.get("{key}", {value.get("default", empty)!r})'
            loads.append(f"            {field}={self.load(value, found)},\n")
        if schema["properties"].get("verdict", {}).get("$ref", "").endswith("/Verdict"):
            lines.append(
                "\n    @property\n    def passed(self) -> bool:\n"
                '        """True if no check failed."""\n'
                '        return self.verdict == "pass"\n'
            )
        lines.append(
            "\n    @classmethod\n"
            f"    def from_dict(cls, data: dict[str, Any]) -> {name}:\n"
            '        """Makes the report from its JSON. Unknown fields are ignored."""\n'
            "        return cls(\n"
        )
        return "".join([*lines, *loads, "        )\n"])


def union(types):
    """Returns a union, with the literals joined and null as Optional."""
    literals = [t[len("Literal[") : -1] for t in types if t.startswith("Literal[")]
    rest = [t for t in types if not t.startswith("Literal[") and t != "None"]
    if literals:
        rest.append(f"Literal[{', '.join(literals)}]")
    joined = rest[0] if len(rest) == 1 else f"Union[{', '.join(rest)}]"
    return f"Optional[{joined}]" if "None" in types else joined


def doc(schema, indent):
    """Returns a description as a docstring."""
    text = schema.get("description", "")
    # Links of rustdoc: [`NAME`](PATH) and [`NAME`].
    text = re.sub(r"\[(`[^`]*`)\](\([^)]*\))?", r"\1", text)
    if not text:
        return ""
    lines = []
    for paragraph in text.split("\n\n"):
        joined = " ".join(paragraph.split())
        lines += textwrap.wrap(joined, 100 - len(indent)) + [""]
    lines.pop()
    if len(lines) == 1 and len(lines[0]) < 90:
        return f'{indent}"""{lines[0]}"""\n'
    body = "\n".join((indent + line).rstrip() for line in lines)
    return f'{indent}"""{body[len(indent):]}\n{indent}"""\n'


def class_name(title):
    return "".join(word.capitalize() for word in title.split("-")) + "Report"


def main():
    generator = Generator()
    for path in sorted(SCHEMAS.glob("*.schema.json")):
        schema = json.loads(path.read_text())
        generator.add(class_name(schema["title"]), schema)
        for name, definition in schema.get("$defs", {}).items():
            generator.add(name, definition)
    text = generator.text()
    if sys.argv[1:] == ["--check"]:
        if OUT.read_text() != text:
            sys.exit(f"{OUT.name} differs from schemas/json: run python/generate_reports.py")
    else:
        OUT.write_text(text)


if __name__ == "__main__":
    main()
