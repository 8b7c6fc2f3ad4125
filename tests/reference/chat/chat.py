"""Renders the templates of this folder with Jinja2, set up as transformers does, and writes what
comes of it to expected.json. Needs jinja2 3.1.6.

The templates are made for this test and use what published ones use.
"""

import datetime
import json
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = Path(__file__).parent
NOW = datetime.datetime(2026, 3, 4, 5, 6, 7)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.If(jinja2.nodes.Const(True), body, [], [])


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def render(template, case):
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    variables = {
        "enable_thinking": True,
        "preserve_thinking": True,
        "clear_thinking": False,
        "truncate_history_thinking": False,
        "drop_thinking": False,
        "messages": case.get("shaped", case["messages"]),
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_generation_prompt": True,
    }
    if "tools" in case:
        variables["tools"] = case["tools"]
    variables.update(case.get("kwargs", {}))
    return env.from_string(template).render(**variables)


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def part(text):
    return {"type": "text", "text": text}


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a \"city\" <b>&</b> \u00e9",
        "parameters": {"type": "object", "properties": {"days": {"type": "integer", "enum": [1, 2]}}},
    },
}
ARGUMENTS = {"city": "Z\u00fcrich", "days": 2, "deep": {"a": [1, 2.5, None, True]}}


def call(arguments):
    return {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def asked(arguments):
    return [
        said("user", "Weather?"),
        said("assistant", "", tool_calls=[call(arguments)]),
        said("tool", '{"t": 3}', tool_call_id="call12345", name="weather"),
    ]


USER = [said("user", "Hello <|im_end|> there\n 'quoted' \"x\" ")]
SYSTEM = [said("system", " Be brief. "), *USER, said("assistant", "Hi!"), said("user", "Again?")]
THOUGHTS = [
    said("user", "Hi"),
    said("assistant", "Hello!", reasoning_content="let me think"),
    said("user", "More"),
    said("assistant", "<think>\nhm\n</think>\n\nYes"),
    said("user", "Bye"),
]
PARTS = [said("user", [part("one"), part("two")])]
JOINED = [said("user", "one\ntwo")]

CASES = [
    *({"template": t, "messages": m} for t in ["chatml", "headers"]
      for m in [USER, SYSTEM, THOUGHTS]),
    *({"template": t, "messages": asked(ARGUMENTS), "tools": [TOOL]}
      for t in ["chatml", "headers"]),
    *({"template": t, "messages": THOUGHTS, "kwargs": k} for t in ["chatml"]
      for k in [{"enable_thinking": False}, {"preserve_thinking": False, "clear_thinking": True}]),
    {"template": "headers", "messages": USER, "kwargs": {"date_string": "1 Jan 2025"}},
    {"template": "headers", "messages": [*USER, said("assistant", "", tool_calls=[call({}), call({})])]},
    # Arguments as a text: kept where the template takes texts, else parsed.
    {"template": "chatml", "messages": asked('{"a":1}'), "tools": [TOOL]},
    {"template": "headers", "messages": asked('{"a":1}'), "shaped": asked({"a": 1}), "tools": [TOOL]},
    # Parts are joined for templates that take texts, texts are made parts for the others.
    {"template": "chatml", "messages": PARTS, "shaped": JOINED},
    {"template": "headers", "messages": PARTS, "shaped": JOINED},
    {"template": "strict", "messages": PARTS},
    {"template": "strict", "messages": USER, "shaped": [said("user", [part(USER[0]["content"])])]},
    {"template": "strict", "messages": SYSTEM},
    {"template": "strict", "messages": [*PARTS, *PARTS]},
    {"template": "values", "messages": SYSTEM},
]

if __name__ == "__main__":
    for case in CASES:
        source = (HERE / f"{case['template']}.jinja").read_text()
        try:
            case["rendered"] = render(source, case)
        except jinja2.exceptions.TemplateError as error:
            case["refused"] = str(error)
        case.pop("shaped", None)
    text = json.dumps(CASES, indent=1, ensure_ascii=False)
    (HERE / "expected.json").write_text(text + "\n")
