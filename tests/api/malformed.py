"""The table of what cannot be served: malformed bodies, parameters, items, paths, queries and headers."""

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

MAX_BODY = 3_000_000
MEGABYTE = "x" * 1_000_000
SQL = "'; drop table conversations; --"
UNKNOWN = "0" * 32


@dataclass(frozen=True)
class Bad:
    """A request that cannot be served. `body` is sent as JSON, or as it is when it is bytes; `param` begins the name of
    the parameter in the refusal; `ok` are the states that will do."""

    name: str
    path: str = "/v1/responses"
    body: Any = None
    method: str = "POST"
    param: str | None = None
    ok: tuple[int, ...] = (400,)
    code: str | None = None
    headers: dict[str, str | bytes] = field(default_factory=dict)
    in_envelope: bool = True


def response(param: str, value: Any, name: str = "", expects: str | None = None) -> Bad:
    """A response with one wrong parameter."""
    shown = name or f"{param} = {json.dumps(value)}"
    return Bad(f"response: {shown}", body={"input": "hello", param: value}, param=expects or param)


def item(value: Any, param: str = "", name: str = "") -> list[Bad]:
    """An item that is wrong, wherever items are taken."""
    shown = name or json.dumps(value)
    at = "/v1/conversations/{conversation}/items"
    return [
        Bad(f"input item: {shown}", body={"input": [value]}, param=f"input[0]{param}"),
        Bad(f"added item: {shown}", at, {"items": [value]}, param=f"items[0]{param}"),
        Bad(f"first item: {shown}", "/v1/conversations", {"items": [value]}, param=f"items[0]{param}"),
    ]


def content(value: Any, param: str = "", name: str = "") -> Bad:
    """A part of a message that is wrong."""
    shown = name or json.dumps(value)
    body = {"input": [{"role": "user", "content": [value]}]}
    return Bad(f"part: {shown}", body=body, param=f"input[0].content[0]{param}")


def chat(param: str, value: Any, name: str = "") -> Bad:
    body = {"messages": [{"role": "user", "content": "hello"}], param: value}
    return Bad(f"chat: {name or f'{param} = {json.dumps(value)}'}", "/v1/chat/completions", body, param=param)


def message(value: Any, param: str = "", name: str = "") -> Bad:
    """A chat message that is wrong."""
    shown = name or json.dumps(value)
    return Bad(f"message: {shown}", "/v1/chat/completions", {"messages": [value]}, param=f"messages[0]{param}")


def query(path: str, name: str, value: str, *states: int) -> Bad:
    return Bad(
        f"query: {path}?{name}={value[:30]}",
        f"{path}{'&' if '?' in path else '?'}{name}={quote(value, safe='')}",
        method="GET",
        param=name,
        ok=states or (400,),
    )


ITEMS = "/v1/conversations/{conversation}/items"
INPUT_ITEMS = "/v1/responses/{response}/input_items"
LISTS = ("/v1/conversations", ITEMS, INPUT_ITEMS)
SESSIONS = "/api/sessions"
LONG_NUMBER = "9" * 5000

BODIES = [
    *(
        Bad(f"body: {name}, to {path}", path, data)
        for path in ("/v1/responses", "/v1/chat/completions", "/v1/conversations")
        for name, data in {
            "half an object": b"{",
            "a list": b"[]",
            "a string": b'"input"',
            "a number": b"7",
            "null": b"null",
            "a bare word": b"nul",
            "not UTF-8": b'{"input": "\xff", "messages": [{"role": "user", "content": "\xff"}], "metadata": "\xff"}',
            "a surrogate in UTF-8": b'{"input": "\xed\xa0\x80", "messages": "\xed\xa0\x80", "items": "\xed\xa0\x80"}',
            "UTF-16": '{"input": "hello"}'.encode("utf-16"),
            "something after the end": b'{"input": "hello", "messages": [{"role": "user", "content": "x"}]} x',
            "single quotes": b"{'input': 'hello', 'messages': 7}",
            "NaN": b'{"input": "x", "messages": [], "temperature": NaN, "metadata": NaN}',
            "an unknown escape": rb'{"input": "\x", "messages": "\x", "metadata": "\x"}',
            "a control character": b'{"input": "\x01", "messages": "\x01", "metadata": "\x01"}',
            "brackets without an end": b'{"input": ' + b"[" * 500_000,
            "deep lists": b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b', "messages": 7, "metadata": 7}',
            "deep objects": b'{"messages": 7, "metadata": 7, "input": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
        }.items()
    ),
    Bad("body: nothing", body=b""),
    Bad("body: only white space", body=b"  \n "),
    Bad("body: an object without an input", body={}, param="input"),
    Bad("body: no items", body={"input": []}, param="input"),
    Bad("body: no items, not stored", body={"input": [], "store": False}, param="input"),
    Bad("fork: only white space", "/v1/conversations/{conversation}/fork", b" \n"),
    Bad("body: a form", body=b"input=hello"),
    Bad("chat: nothing", "/v1/chat/completions", b""),
    Bad("chat: no messages", "/v1/chat/completions", {}, param="messages"),
    Bad("body: too large", body={"input": "x" * MAX_BODY}, ok=(413,), code="request_too_large"),
    Bad("chat: too large", "/v1/chat/completions", b" " * (MAX_BODY + 1), ok=(413,), code="request_too_large"),
    Bad("conversation: too large", "/v1/conversations", b" " * (MAX_BODY + 1), ok=(413,), code="request_too_large"),
    Bad(
        "deep in an unchecked field",
        body=b'{"input": "x", "tools": [{"type": "function", "name": "f", "parameters": '
        + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}]}",
    ),
]  # fmt: skip

PARAMETERS = [
    *(response("input", value) for value in (7, True, {}, [], [7], ["hello"], [[]], [None], None, 1.5)),
    *(response("conversation", value) for value in (7, [], {}, {"id": 7}, {"id": None}, "", {"id": ""}, True)),
    *(response("conversation", value) for value in ("../etc/passwd", " lead", "-dash", "a/b", "a b", SQL)),
    *(response("conversation", value) for value in ("é", "\u202ea", "日本")),
    *(response("conversation", {"id": value}) for value in ("../etc/passwd", "a\nb", "\u0000")),
    *(response("conversation", f"a{char}b") for char in ("\u0000", "\n", "\t", "\u007f", "\u0085")),
    response("conversation", "x" * 256, "a name of 256"),
    response("conversation", MEGABYTE, "a name of a megabyte"),
    response("conversation", {"id": MEGABYTE}, "an id of a megabyte", "conversation"),
    *(response("previous_response_id", value) for value in (7, [], {"id": "resp_1"})),
    *(response("instructions", value) for value in (7, [], {})),
    *(response("model", value) for value in (7, [], {}, "m\n")),
    *(response(flag, value) for flag in ("stream", "background", "store") for value in ("true", 1, [])),
    *(response("parallel_tool_calls", value) for value in ("yes", 0)),
    *(response("metadata", value) for value in (7, [], "x", {"a": 1}, {"a": None}, {"a": {}}, {"a": "x" * 513})),
    response("metadata", {"k" * 65: "v"}, "a key of 65"),
    response("metadata", {f"k{n}": "v" for n in range(17)}, "17 keys"),
    *(response("tools", value) for value in ({}, [7], [{}], [{"type": "nope"}], [{"type": "function"}], "auto")),
    *(response("tools", [{"type": "function", "name": name}]) for name in ("", "a b", "é", "../x", "n" * 129, "f\n")),
    *(response("tools", [{"type": "function", "name": "f", "parameters": value}]) for value in (7, [], "x")),
    response("tools", [{"type": "function", "name": "f"}, {"type": "nope"}], expects="tools[1].type"),
    response("tools", [{"type": "function", "name": "f"}, {"name": "f"}], expects="tools[1].type"),
    response("tools", [{"type": "custom"}], expects="tools[0].name"),
    *(
        response("tools", [{"type": "namespace", "name": "functions", **more}], expects="tools[0].tools")
        for more in ({}, {"tools": 7}, {"tools": [{"type": "nope"}]}, {"tools": [{"type": "custom"}]})
    ),
    response("input", [{"type": "additional_tools", "tools": [{"type": "custom", "name": "f"}]}], "tools alone"),
    *(
        response("input", [{"role": "user", "content": "x"}, {"type": "additional_tools", **more}], expects=at)
        for more, at in (
            ({}, "input[1].tools"),
            ({"tools": 7}, "input[1].tools"),
            ({"tools": [], "role": "user"}, "input[1].role"),
            ({"tools": [{"type": "nope"}]}, "input[1].tools[0].type"),
        )
    ),
    response("input", [{"type": "additional_tools", "tools": []}, {"role": "robot"}], expects="input[1]"),
    *(response("tools", [{"type": "custom", "name": name}], expects="tools[0].name") for name in ("", "a b", 7, "f\n")),
    response("tools", [{"type": "custom", "name": "f", "description": 7}], expects="tools[0].description"),
    *(
        response("tools", [{"type": "custom", "name": "f", "format": value}], expects="tools[0].format")
        for value in ("text", {}, {"type": "xml"}, {"type": "grammar"}, {"type": "grammar", "syntax": "lark"},
                      {"type": "grammar", "syntax": "bnf", "definition": "x"})
    ),
    *(response("tool_choice", {"type": kind}) for kind in ("custom", "nope", "web_search", "mcp", 7)),
    response("tool_choice", {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom"}]}),
    *(response("tool_choice", value) for value in ("maybe", 7, [], {}, {"type": "file_search"}, {"type": "function"})),
    *(response("temperature", value) for value in ("hot", 2.1, -0.1, [], True)),
    *(response("top_p", value) for value in ("x", 1.1, -1)),
    *(response("top_logprobs", value) for value in (21, -1, 1.5, "x")),
    *(response("max_output_tokens", value) for value in (0, -1, 1.5, "x")),
    *(response("max_tool_calls", value) for value in (0, "x")),
    *(response("text", value) for value in ("x", {"format": "x"}, {"format": {"type": "xml"}}, {"verbosity": "loud"})),
    *(response("reasoning", value) for value in ("x", {"effort": "a lot"}, {"summary": "long"})),
    response("truncation", "maybe"),
    response("service_tier", "gold"),
    response("text", {"format": {"type": "json_schema", "schema": {}}}, expects="text.format.name"),
    response("text", {"format": {"type": "json_schema", "name": "n"}}, expects="text.format.schema"),
    *(response("include", value) for value in (5, "bogus", ["bogus"], "reasoning.encrypted_content")),
    *(response("stream_options", value) for value in ("x", {"include_obfuscation": "x"})),
    *(response("prompt", value) for value in (5, {}, {"id": 7})),
    *(response("reasoning", value) for value in ({"context": "zz"}, {"mode": 7})),
    *(response(name, value) for name in ("presence_penalty", "frequency_penalty") for value in ("s", 9, -2.1)),
    *(response("prompt_cache_retention", value) for value in ("zzz", 7)),
    *(response("prompt_cache_options", value) for value in (7, {"mode": "zzz"}, {"ttl": "1y"})),
    *(response("moderation", value) for value in (7, {}, {"model": 7})),
    *(response(name, 7) for name in ("user", "safety_identifier", "prompt_cache_key")),
]  # fmt: skip

ITEM_ROWS = [
    *item({}, ".type"),
    *item({"type": "telepathy"}, ".type"),
    *item({"type": 7}, ".type"),
    *item({"type": []}, ".type"),
    *item({"type": None}, ".type"),
    *item({"type": MEGABYTE}, ".type", "a type of a megabyte"),
    *item({"type": "item_reference", "id": "msg_1"}, ".type")[1:],
    *(
        Bad(
            f"a reference to {id!r}",
            body={"input": [{"type": "item_reference", "id": id}]},
            ok=(404,),
            param="input[0].id",
        )
        for id in ("msg_1", "msg_" + UNKNOWN, "x", "_", "msg_%", "msg_\0aaaaaaaaaaaaaa", "resp_0000\0")
    ),
    Bad("a reference to nothing", body={"input": [{"type": "item_reference", "id": ""}]}, param="input[0].id"),
    Bad("a reference to a number", body={"input": [{"type": "item_reference", "id": 1}]}, param="input[0].id"),
    *item({"role": "robot", "content": "x"}, ".role"),
    *item({"role": 7, "content": "x"}, ".role"),
    *item({"role": "user"}),
    *item({"role": "user", "content": 7}, ".content"),
    *item({"role": "user", "content": None}, ".content"),
    *item({"role": "user", "content": [7]}, ".content"),
    *item({"role": "user", "content": "x", "status": "lost"}, ".status"),
    *item({"role": "user", "content": "x", "id": 7}, ".id"),
    *item({"type": "function_call", "name": "f", "arguments": "{}"}),
    *item({"type": "function_call", "call_id": "c", "arguments": "{}"}),
    *item({"type": "function_call", "call_id": "c", "name": "f"}),
    *item({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}, ".arguments"),
    *item({"type": "function_call", "call_id": "", "name": "f", "arguments": "{}"}, ".call_id"),
    *item(
        {"type": "function_call", "call_id": "c" * 256, "name": "f", "arguments": "{}"}, ".call_id", "a long call id"
    ),
    *item({"type": "function_call_output", "call_id": "c"}),
    *item({"type": "function_call_output", "output": "x"}),
    *item({"type": "function_call_output", "call_id": "c", "output": 7}, ".output"),
    *item({"type": "function_call_output", "call_id": "c", "output": [{"type": "telepathy"}]}, ".output[0].type"),
    *item({"type": "custom_tool_call", "call_id": "c", "name": "f"}, ".input"),
    *item({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": {}}, ".input"),
    *item({"type": "custom_tool_call", "call_id": "c", "name": "", "input": "x"}, ".name"),
    *item({"type": "custom_tool_call", "call_id": "", "name": "f", "input": "x"}, ".call_id"),
    *item({"type": "custom_tool_call_output", "call_id": "c"}, ".output"),
    *item({"type": "custom_tool_call_output", "output": "x"}, ".call_id"),
    *item({"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "telepathy"}]}, ".output[0].type"),
    *item({"type": "web_search_call", "id": "ws_1", "status": "completed"}, ".type"),
    *item({"type": "additional_tools", "tools": []}, ".type", "tools that are no request's")[1:],
    *item({"type": "reasoning", "summary": "x"}, ".summary"),
    *item({"type": "reasoning", "summary": [7]}, ".summary"),
    content({}, ".type"),
    content({"type": "input_video"}, ".type"),
    content({"type": 7}, ".type"),
    content({"type": MEGABYTE}, ".type", "a type of a megabyte"),
    content({"type": "input_text"}),
    content({"type": "input_text", "text": 7}, ".text"),
    content({"type": "input_image"}, ".image_url"),
    content({"type": "input_image", "image_url": 7}, ".image_url"),
    content({"type": "input_image", "image_url": {"url": "x"}}, ".image_url"),
    content({"type": "input_image", "image_url": "https://example.com/a.png", "detail": "more"}, ".detail"),
    content({"type": "input_file"}, ".file_data"),
    content({"type": "refusal"}),
    Bad("added items: 21", ITEMS, {"items": [{"role": "user", "content": "x"}] * 21}, param="items"),
    Bad("added items: none", ITEMS, {}, param="items"),
    Bad("added items: a string", ITEMS, {"items": "x"}, param="items"),
    Bad("first items: 21", "/v1/conversations", {"items": [{"role": "user", "content": "x"}] * 21}, param="items"),
    Bad("second item is wrong", ITEMS, {"items": [{"role": "user", "content": "x"}, {}]}, param="items[1]"),
]

CHATS = [
    chat("tools", [{"type": "custom", "custom": {"name": "f"}}]),
    chat("tools", [{"type": "web_search"}]),
    *(chat("messages", value) for value in ([], "x", {}, [7], None)),
    *(chat("conversation", value) for value in (5, [], {}, "", "a b")),
    chat("previous_response_id", 5),
    chat("functions", [{"name": "now", "parameters": {}}]),
    chat("n", 2),
    chat("n", 0),
    *(chat("temperature", value) for value in ("hot", 3, -1)),
    chat("top_p", 2),
    chat("presence_penalty", 3),
    chat("frequency_penalty", -3),
    *(chat("max_tokens", value) for value in (0, "x")),
    chat("max_completion_tokens", 0),
    *(chat("stop", value) for value in (7, [7])),
    chat("seed", "x"),
    chat("logit_bias", {"a": "b"}),
    *(chat("response_format", value) for value in ("json", {}, {"type": "bogus"}, {"type": "json_schema"})),
    chat("response_format", {"type": "json_schema", "json_schema": {"schema": {}}}),
    *(chat("tool_choice", value) for value in ({}, {"type": "bogus"}, {"type": "function"}, {"type": "allowed_tools"})),
    *(chat(flag, "yes") for flag in ("logprobs", "store", "parallel_tool_calls")),
    *(chat("top_logprobs", value) for value in (99, -1, "x")),
    chat("verbosity", "loud"),
    chat("modalities", ["smell"]),
    chat("modalities", ["text", "audio"]),
    chat("prompt_cache_retention", "zzz"),
    *(chat(name, 7) for name in ("user", "safety_identifier", "prompt_cache_key")),
    chat("stream", "yes"),
    chat("stream_options", "x"),
    chat("stream_options", {"include_usage": "x"}),
    chat("tool_choice", "maybe"),
    *(chat("tools", value) for value in ("x", [{}], [{"type": "x"}], [{"type": "function"}])),
    chat("tools", [{"type": "function", "function": {"name": "a b"}}]),
    chat("reasoning_effort", "a lot"),
    chat("service_tier", "gold"),
    *(chat("metadata", value) for value in ([], {"a": 1}, {"k" * 65: "v"}, {"a": "x" * 513})),
    message({}),
    message({"role": "robot", "content": "x"}, ".role"),
    message({"role": "user"}, ".content"),
    message({"role": "user", "content": None}, ".content"),
    message({"role": "user", "content": 7}, ".content"),
    message({"role": "user", "content": [{"type": "telepathy"}]}, ".content[0].type"),
    message({"role": "user", "content": [{"type": "text"}]}, ".content[0]"),
    message({"role": "user", "content": [{"type": "file", "file": {}}]}, ".content[0].file.file_data"),
    message({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, ".content[0].image_url"),
    message({"role": "tool", "content": "x"}, ".tool_call_id"),
    message({"role": "tool", "content": "x", "tool_call_id": ""}, ".tool_call_id"),
    message({"role": "assistant", "tool_calls": [{}]}, ".tool_calls[0]"),
    message({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": 7}}]}, ".tool_calls[0]"),
    message({"role": "user", "content": "x", "name": 7}, ".name"),
    Bad("chat: the assistant has the last word", "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
         "conversation": "spoken"}, param="messages"),
]  # fmt: skip

AT = "/v1/conversations/{conversation}"

CONVERSATIONS = [
    *(Bad(f"metadata to {path}: {str(value)[:20]} of {len(str(value))}", path, {"metadata": value}, param="metadata")
      for path in ("/v1/conversations", AT)
      for value in (7, [], {"a": 1}, {"k" * 65: "v"}, {"a": "x" * 513}, {f"k{n}": "v" for n in range(17)})),
    Bad("update: not an object", AT, []),
    Bad("update: nothing", AT, {}, param="metadata"),
    *(Bad(f"rewind: {str(to)[:20]}", f"{AT}/rewind", {"to": to}, param="to")
      for to in (-1, 10**6, 10**30, 1.5, "nowhere", None, [])),
    Bad("rewind: nothing", f"{AT}/rewind", {}, param="to"),
    *(Bad(f"compact: {str(upto)[:20]}", f"{AT}/compact", {"upto": upto, "summary": "s"}, param="upto")
      for upto in (-1, 0, 10**6, 10**30, "nowhere", None)),
    Bad("compact: no summary", f"{AT}/compact", {"upto": 1}, param="summary"),
    Bad("compact: an empty summary", f"{AT}/compact", {"upto": 1, "summary": ""}, param="summary"),
    Bad("compact: a summary that is a list", f"{AT}/compact", {"upto": 1, "summary": []}, param="summary"),
    *(Bad(f"expand: {str(of)[:20]}", f"{AT}/expand", {"of": of}, param="of")
      for of in (-1, 0, 10**6, 10**30, "x", None)),
    Bad("expand: what is no compaction", f"{AT}/expand", {"of": 1}, param="of"),
    *(Bad(f"fork: {str(at)[:20]}", f"{AT}/fork", {"at": at}, param="at") for at in (-1, 10**6, 10**30, "x", 1.5)),
    *(Bad(f"alias: {name}", f"{AT}/aliases/{quote(name, safe='')}", method="PUT", param="name")
      for name in ("conv_x", "-dash", " lead", "a b", "é", SQL, "x" * 256, "\u0000", "\u202ea")),
    Bad("alias: taken", f"{AT}/aliases/taken", method="PUT", ok=(409,), code="alias_taken"),
    Bad("alias: not its own", f"{AT}/aliases/taken", method="DELETE", ok=(404,)),
    Bad("alias: unknown", f"{AT}/aliases/unknown", method="DELETE", ok=(404,)),
]  # fmt: skip


KEYS = [
    *(Bad(f"key: {body}", "/v1/keys", body, param=param)
      for param, body in (
          ("name", {}), ("name", {"name": 7}), ("name", {"name": ""}), ("name", {"name": "a\n"}),
          ("principal", {"name": "k", "principal": 7}), ("principal", {"name": "k", "principal": "p\n"}),
          ("scopes", {"name": "k", "scopes": "admin"}), ("scopes[0]", {"name": "k", "scopes": ["bogus"]}),
      )),
]  # fmt: skip

AT_SESSION = "/api/sessions/{conversation}"

OLDER = [
    *(Bad(f"run: {str(body)[:60]}", "/v1/runs", body, param=param)
      for param, body in (
          ("input", {}), ("input", {"input": 7}), ("input[0].type", {"input": [{}]}), ("input", {"input": []}),
          ("session_id", {"input": "x", "session_id": ""}), ("session_id", {"input": "x", "session_id": "s" * 256}),
          ("session_id", {"input": "x", "session_id": 7}), ("session_id", {"input": "x", "session_id": "a\nb"}),
          ("instructions", {"input": "x", "instructions": 7}), ("model", {"input": "x", "model": []}),
          ("conversation_history", {"input": "x", "conversation_history": "x"}),
          ("conversation_history[0]", {"input": "x", "conversation_history": [{"role": "robot", "content": "x"}]}),
          ("session_id", {"input": "x", "session_id": "s", "previous_response_id": "resp_1"}),
          ("session_id", {"input": "x", "session_id": "s", "conversation": "c"}),
          ("previous_response_id", {"input": "x", "conversation": "c", "previous_response_id": "resp_1"}),
          ("conversation", {"input": "x", "conversation": 5}), ("conversation", {"input": "x", "conversation": "a b"}),
          ("conversation_history",
           {"input": "x", "conversation": "c", "conversation_history": [{"role": "user", "content": "x"}]}),
      )),
    *(Bad(f"run: a session header and {str(body)[:60]}", "/v1/runs", {"input": "x", **body}, param=param,
          headers={"X-Hermes-Session-Id": "one"}, code="mutually_exclusive_parameters")
      for param, body in (
          ("conversation", {"conversation": "other"}), ("session_id", {"session_id": "other"}),
      )),
    Bad("run: nothing new for a session", "/v1/runs", {"input": [{"role": "assistant", "content": "x"}]}, param="input",
        headers={"X-Hermes-Session-Id": "one"}),
    Bad("run: half an object", "/v1/runs", b"{"),
    Bad("run: a session that is not there", "/v1/runs", {"input": "x", "session_id": "conv_" + UNKNOWN}, ok=(404,)),
    Bad("run: an unknown previous response", "/v1/runs", {"input": "x", "previous_response_id": "resp_1"}, ok=(404,),
        code="previous_response_not_found"),
    Bad("run: no approval is pending", "/v1/runs/{response}/approval", {"approved": True}, ok=(409,),
        code="approval_not_pending"),
    *(Bad(f"session: {str(body)[:60]}", "/api/sessions", body, param=param)
      for param, body in (
          ("id", {"id": ""}), ("id", {"id": 7}), ("id", {"id": "s" * 256}), ("id", {"id": "a\u0000b"}),
          ("id", {"id": "conv_" + UNKNOWN}), ("title", {"title": 7}), ("title", {"title": "t" * 501}),
          ("session_id", {"session_id": 7}), ("model", {"model": 7}), ("system_prompt", {"system_prompt": 7}),
      )),
    Bad("session: a list", "/api/sessions", []),
    Bad("session: forked by a number", AT_SESSION + "/fork", {"id": 7}, param="id"),
    Bad("session: forked by an id of ours", AT_SESSION + "/fork", {"id": "conv_" + UNKNOWN}, param="id"),
    Bad("session: retitled by a number", AT_SESSION, {"title": 7}, "PATCH", param="title"),
    Bad("session: retitled at length", AT_SESSION, {"title": "t" * 501}, "PATCH", param="title"),
    Bad("session: changed by nothing", AT_SESSION, b"", "PATCH"),
    Bad("session: changed in what it has not", AT_SESSION, {"title": "t", "color": "red"}, "PATCH", param="color"),
    *(Bad(f"session chat: {str(body)[:60]} to {tail}", AT_SESSION + tail, body, param=param)
      for tail in ("/chat", "/chat/stream")
      for param, body in (
          ("input", {}), ("input", {"input": 7}), ("input", {"input": []}), ("message", {"message": 7}),
          ("input[0].type", {"input": [{"type": "x"}]}), ("instructions", {"input": "x", "instructions": 7}),
      )),
]  # fmt: skip


def _unknown(path: str, method: str = "GET", body: Any = None, *states: int, param: str | None = None) -> list[Bad]:
    """A path that names nothing: the name is never a path, SQL or an object."""
    names = (
        *("..%2f..%2fetc%2fpasswd", "%2e%2e", "%00", "x%00y", "%0a", "%ff", "%ed%a0%80", "%e2%80%ae", "*", "%25", "_"),
        *(quote(SQL, safe=""), quote("' or '1'='1", safe=""), "x" * 20_000, "null"),
        *("conv_" + UNKNOWN, "resp_" + UNKNOWN),
    )  # fmt: skip
    return [
        Bad(f"path: {method} {path} of {name[:40]}", path.replace("{name}", name), body, method,
            param=param, ok=states or (400, 404))
        for name in names
    ]  # fmt: skip


PATHS = [
    *_unknown("/v1/conversations/{name}"),
    *_unknown("/v1/conversations/{name}/items"),
    *_unknown("/v1/conversations/{name}/export"),
    *_unknown("/v1/conversations/{name}", "DELETE"),
    *_unknown("/v1/conversations/{name}/items", "POST", {"items": [{"role": "user", "content": "x"}]}),
    *_unknown("/v1/conversations/{conversation}/items/{name}"),
    *_unknown("/v1/responses/{name}"),
    *_unknown("/v1/responses/{name}/cancel", "POST"),
    *_unknown("/v1/responses/{name}/input_items"),
    *_unknown("/v1/models/{name}"),
    *_unknown("/v1/runs/{name}"),
    *_unknown("/v1/runs/{name}/events"),
    *_unknown("/v1/runs/{name}/stop", "POST"),
    *_unknown("/api/sessions/{name}"),
    *_unknown("/api/sessions/{name}/messages"),
    *_unknown("/api/sessions/{name}/chat", "POST", {"input": "x"}),
    *(Bad(f"previous: {name[:20]!r}", body={"input": "x", "previous_response_id": name}, ok=(404,),
          code="previous_response_not_found", param="previous_response_id")
      for name in ("", "resp_" + UNKNOWN, "conv_" + UNKNOWN, SQL, "../x", "\u0000", "a\nb", MEGABYTE)),
    *(Bad(f"conversation: {name[:20]!r}", body={"input": "x", "conversation": name}, ok=(404,),
          code="conversation_not_found", param="conversation")
      for name in ("conv_", "conv_" + UNKNOWN, "conv_" + SQL, "conv_../x")),
    *(Bad(f"no such route: {method} {path}", path, method=method, ok=(404,))
      for method in ("GET", "POST")
      for path in ("/v", "/v1", "/v1/", "/v2/responses", "/v1/responses/a/b/c", "/v1/response", "//v1/models")),
    *(Bad(f"wrong method: {method} {path}", path, method=method, ok=(405,))
      for method, path in (
          ("PATCH", "/v1/responses"), ("GET", "/v1/responses"), ("PUT", "/v1/conversations"), ("DELETE", "/v1/models"),
          ("GET", "/v1/chat/completions"), ("POST", "/v1/models"), ("PATCH", AT), ("TRACE", "/v1/models"),
          ("POST", "/healthz"), ("PUT", "/v1/responses/x"), ("DELETE", "/v1/responses"), ("POST", f"{AT}/export"),
      )),
]  # fmt: skip

QUERIES = [
    *(query(path, "limit", value)
      for path in LISTS for value in ("0", "101", "abc", "-1", "1.5", "", "٣", SQL, LONG_NUMBER)),
    *(query(path, "order", value) for path in (ITEMS, INPUT_ITEMS) for value in ("", "sideways", "ASC;", SQL)),
    *(query(path, "after", value, 400, 404)
      for path in LISTS for value in ("nothing", SQL, "\u0000", "../x", MEGABYTE[:9000])),
    *(Bad(f"query: {path}?{name}=zz", f"{path}?{name}=zz", method="GET", param="include")
      for path in (ITEMS, INPUT_ITEMS, "/v1/responses/{response}") for name in ("include", "include[]")),
    *(query(SESSIONS, "limit", value) for value in ("0", "201", "abc", LONG_NUMBER)),
    *(query(SESSIONS, "offset", value) for value in ("-1", "10001", "abc", LONG_NUMBER)),
    *(query("/v1/responses/{response}", "stream", value) for value in ("", "maybe", "2", SQL)),
    *(query(f"/v1/responses/{{response}}?stream={stream}", "starting_after", value)
      for stream in ("true", "false")
      for value in ("abc", "-1", "1.5", SQL, LONG_NUMBER)),
]  # fmt: skip
HELLO = {"input": "hello"}


def header(name: str, value: str | bytes, *states: int, code: str | None = None, param: str | None = None) -> Bad:
    shown = value if isinstance(value, str) else value.decode("latin-1")
    states = states or (400,)
    return Bad(f"header: {name}: {shown[:40]!r}", body=HELLO, headers={name: value}, ok=states, code=code, param=param)


HEADERS = [
    *(header("Idempotency-Key", value, param="Idempotency-Key") for value in ("", "k" * 256)),
    *(header("X-Legato-Busy", value, param="X-Legato-Busy") for value in ("maybe", "queue, steer", "", "é".encode())),
    *(header(name, value, param=name.lower())
      for name in ("X-Hermes-Session-Id", "X-Legato-Conversation")
      for value in ("", "s" * 256, b"\xff\xfe", b"\xed\xa0\x80", "\u0085".encode(), "\u009f".encode())),
    header("X-Hermes-Session-Id", "conv_" + UNKNOWN, 404, code="conversation_not_found"),
    Bad("header: a session and a conversation", body={**HELLO, "conversation": "elsewhere"}, param="conversation",
        headers={"X-Hermes-Session-Id": "here"}, code="mutually_exclusive_parameters"),
    *(Bad(f"header: a session and a previous response on {path}", path, {**body, "previous_response_id": "resp_1"},
          headers={"X-Hermes-Session-Id": "here"}, ok=(404,), code="previous_response_not_found",
          param="previous_response_id")
      for path, body in (("/v1/responses", HELLO), ("/v1/runs", HELLO),
                         ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}))),
    Bad("header: a session and a chat's conversation", "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "conversation": "elsewhere"}, param="conversation",
        headers={"X-Hermes-Session-Id": "here"}, code="mutually_exclusive_parameters"),
    Bad("header: nothing new for a session", body={"input": [{"role": "assistant", "content": "x"}]}, param="input",
        headers={"X-Hermes-Session-Id": "here"}),
    Bad("response: a history beside a conversation", param="conversation_history", code="mutually_exclusive_parameters",
        body={**HELLO, "conversation": "c", "conversation_history": [{"role": "user", "content": "x"}]}),
    Bad("header: two sessions", body=HELLO, headers={"X-Hermes-Session-Id": "a", "X-Legato-Conversation": "b"},
        param="x-hermes-session-id"),
    *(header("Authorization", value, 401, code="invalid_api_key")
      for value in ("", "Bearer", "Bearer ", "Bearer wrong", "Basic eDp5", "lg_key", "Bearer a b", "Bearer é".encode(),
                    b"Bearer \xff\xfe", "Bearer ключ".encode(), "Bearer " + "k" * 8000, b"\xff")),
    *(header("Host", value, 403, code="forbidden")
      for value in ("evil.example", "evil.example:8420", "localhost.evil.example", "127.0.0.1.nip.io", "0.0.0.0",
                    "127.0.0.2", "[::2]", "é.example".encode(), b"\xff")),
    *(header("Host", value, 400, 403) for value in ("", "[::1", "[", "::1", "a@[b")),
    *(header("Origin", value, 403, code="forbidden")
      for value in ("https://evil.example", "null", "http://127.0.0.1:1", "file://", "é".encode(), b"\xff", "")),
    *(header("Origin", value, 400, 403) for value in ("http://[", "http://[::1", "http://a:port")),
    Bad("header: a body that is longer than it says", body=HELLO, headers={"Content-Length": "1"}, in_envelope=False),
    *(Bad(f"header: {name}: {value!r}", body=HELLO, headers={name: value}, in_envelope=False)
      for name in ("X-Hermes-Session-Id", "Idempotency-Key", "X-Legato-Busy", "Authorization")
      for value in (b"a\x00b", b"a\x01b", b"a\x7fb", b"a\x1bb")),
    *(Bad(f"header: Last-Event-ID: {value[:9]!r} of {len(value)}, to {path}", path, method="GET",
          headers={"Last-Event-ID": value}, param="Last-Event-ID")
      for path, values in {
          "/v1/responses/{response}?stream=true": ("abc", "-1", LONG_NUMBER),
          f"{AT}/events": ("abc", "1.", ".1", "-1.0", LONG_NUMBER + ".0", "1." + LONG_NUMBER, "9" * 30 + ".0"),
      }.items()
      for value in values),
]  # fmt: skip

TABLE = {
    "bodies": BODIES,
    "parameters of a response": PARAMETERS,
    "items": ITEM_ROWS,
    "parameters of a chat": CHATS,
    "conversations": CONVERSATIONS,
    "keys": KEYS,
    "runs and sessions": OLDER,
    "paths": PATHS,
    "queries": QUERIES,
    "headers": HEADERS,
}

# -- text that is hard to keep: where text can be, as a body with T in its place

LONE = (r"\ud800", r"x\udc00x", r"\udc00\ud800", r"\ud800\ud800", r"\ud83d x")
TEXTS = {
    "input": ("/v1/responses", '{"input": "T"}'),
    "content": ("/v1/responses", '{"input": [{"role": "user", "content": "T"}]}'),
    "text": ("/v1/responses", '{"input": [{"role": "user", "content": [{"type": "input_text", "text": "T"}]}]}'),
    "image_url": (
        "/v1/responses",
        '{"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "T"}]}]}',
    ),
    "filename": (
        "/v1/responses",
        '{"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "data:,", "filename": "T"}]}]}',
    ),
    "item id": ("/v1/responses", '{"input": [{"role": "user", "content": "x", "id": "T"}]}'),
    "call_id": ("/v1/responses", '{"input": [{"type": "function_call_output", "call_id": "T", "output": "x"}]}'),
    "output": ("/v1/responses", '{"input": [{"type": "function_call_output", "call_id": "c", "output": "T"}]}'),
    "arguments": (
        "/v1/responses",
        '{"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "T"}]}',
    ),
    "function name": (
        "/v1/responses",
        '{"input": [{"type": "function_call", "call_id": "c", "name": "T", "arguments": "{}"}]}',
    ),
    "custom input": (
        "/v1/responses",
        '{"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "T"}]}',
    ),
    "grammar": (
        "/v1/responses",
        '{"input": "x", "tools": [{"type": "custom", "name": "f", "format":'
        ' {"type": "grammar", "syntax": "lark", "definition": "T"}}]}',
    ),
    "reasoning": (
        "/v1/responses",
        '{"input": [{"type": "reasoning", "summary": [{"text": "T"}]}, {"role": "user", "content": "x"}]}',
    ),
    "instructions": ("/v1/responses", '{"input": "x", "instructions": "T"}'),
    "model": ("/v1/responses", '{"input": "x", "model": "T"}'),
    "metadata key": ("/v1/responses", '{"input": "x", "metadata": {"T": "v"}}'),
    "metadata value": ("/v1/responses", '{"input": "x", "metadata": {"k": "T"}}'),
    "user": ("/v1/responses", '{"input": "x", "user": "T"}'),
    "safety_identifier": ("/v1/responses", '{"input": "x", "safety_identifier": "T"}'),
    "prompt_cache_key": ("/v1/responses", '{"input": "x", "prompt_cache_key": "T"}'),
    "description": (
        "/v1/responses",
        '{"input": "x", "tools": [{"type": "function", "name": "f", "description": "T"}]}',
    ),
    "parameters": (
        "/v1/responses",
        '{"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"T": "T"}}]}',
    ),
    "an unknown field": ("/v1/responses", '{"input": "x", "T": "T"}'),
    "message": ("/v1/chat/completions", '{"messages": [{"role": "user", "content": "T"}]}'),
    "system message": (
        "/v1/chat/completions",
        '{"messages": [{"role": "system", "content": "T"}, {"role": "user", "content": "x"}]}',
    ),
    "sender": ("/v1/chat/completions", '{"messages": [{"role": "user", "content": "x", "name": "T"}]}'),
    "stop": ("/v1/chat/completions", '{"messages": [{"role": "user", "content": "x"}], "stop": "T"}'),
    "tool message": ("/v1/chat/completions", '{"messages": [{"role": "tool", "tool_call_id": "T", "content": "T"}]}'),
    "conversation's metadata": ("/v1/conversations", '{"metadata": {"T": "T"}}'),
    "conversation's item": ("/v1/conversations", '{"items": [{"role": "user", "content": "T"}]}'),
    "summary": ("/v1/conversations/{conversation}/compact", '{"upto": 1, "summary": "T"}'),
    "position": ("/v1/conversations/{conversation}/rewind", '{"to": "T"}'),
    "run": ("/v1/runs", '{"input": "T"}'),
    "session id": ("/api/sessions", '{"id": "T"}'),
    "title": ("/api/sessions", '{"title": "T"}'),
    "system prompt": ("/api/sessions", '{"system_prompt": "T"}'),
    "session's message": ("/api/sessions/{conversation}/chat", '{"input": "T"}'),
}  # fmt: skip
