"""A conversation as a page to read: Markdown, or HTML that needs nothing from elsewhere.

What was said is shown as it was said; nothing in it can become markup of the page.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape

from markdown_it import MarkdownIt

from legato.api.custom import input_of
from legato.domain.conversations import Described
from legato.domain.entries import Compaction, Entry, File, Image, Message, Note, Reasoning, Text, ToolCall, ToolResult

CUT_OFF = ", cut off"
_NAMES = {"user": "You", "assistant": "Assistant", "system": "System", "developer": "Developer"}
_words = MarkdownIt("commonmark", {"html": False, "linkify": False, "breaks": True}).enable("table")


def markdown(row: Described, entries: Iterable[Entry]) -> str:
    """The talk as Markdown."""
    lines = [f"# {_plain(row.called) or row.conversation.id}", "", f"`{row.conversation.id}`", ""]
    for entry in entries:
        match entry.body:
            case Message(role=role, parts=parts, incomplete=incomplete):
                lines += [f"## {_NAMES[role]}, {_when(entry.created_at)}{CUT_OFF if incomplete else ''}", ""]
                lines += [part.text if isinstance(part, Text) else f"*{_attached(part)}*" for part in parts]
                lines += [""]
            case Reasoning(text=text) if text:
                lines += [f"> {line}".rstrip() for line in text.splitlines()] + [""]
            case ToolCall(name=name, arguments=arguments, custom=True):
                lines += [f"**{_plain(name)}**", "", *_fenced(input_of(arguments)), ""]
            case ToolCall(name=name, arguments=arguments):
                lines += [f"**{_plain(name)}**", "", *_fenced(arguments, "json"), ""]
            case ToolResult(output=output):
                lines += [*_fenced(output), ""]
            case Note(text=text):
                lines += [f"*{_plain(text)}*", ""]
            case Compaction(summary=summary):
                lines += [
                    "*Summarised for the model:*",
                    "",
                    *(f"> {line}".rstrip() for line in summary.splitlines()),
                    "",
                ]
            case _:
                pass
    return "\n".join(lines).rstrip() + "\n"


def html(row: Described, entries: Iterable[Entry]) -> str:
    """The talk as one page."""
    title = escape(_plain(row.called) or row.conversation.id)
    body = "\n".join(filter(None, (_block(entry) for entry in entries)))
    return _PAGE.format(title=title, id=escape(row.conversation.id), body=body)


def _block(entry: Entry) -> str | None:
    match entry.body:
        case Message(role=role, parts=parts, incomplete=incomplete):
            said = "".join(_part(part) for part in parts)
            cut = CUT_OFF if incomplete else ""
            heading = f"<header>{_NAMES[role]} <time>{_when(entry.created_at)}</time>{cut}</header>"
            return f'<article class="{role}">{heading}{said}</article>'
        case Reasoning(text=text) if text:
            return f"<details><summary>Reasoning</summary><pre>{escape(text)}</pre></details>"
        case ToolCall(name=name, arguments=arguments, custom=custom):
            given = input_of(arguments) if custom else arguments
            return f"<details><summary>Called {escape(name)}</summary><pre>{escape(given)}</pre></details>"
        case ToolResult(output=output, is_error=is_error):
            word = "Failed" if is_error else "Result"
            return f"<details><summary>{word}</summary><pre>{escape(output)}</pre></details>"
        case Note(text=text):
            return f'<p class="note">{escape(text)}</p>'
        case Compaction(summary=summary):
            return f"<details><summary>Summarised for the model</summary><pre>{escape(summary)}</pre></details>"
        case _:
            return None


def _part(part: Text | Image | File) -> str:
    if isinstance(part, Text):
        return str(_words.render(part.text))
    if isinstance(part, Image) and part.url and part.url.startswith(("data:image/", "https://")):
        return f'<img src="{escape(part.url)}" alt="">'
    return f"<p><em>{escape(_attached(part))}</em></p>"


def _attached(part: Image | File) -> str:
    kind = "image" if isinstance(part, Image) else f"file {part.name or ''}".rstrip()
    return f"[{kind}{f', {part.media_type}' if part.media_type else ''}]"


def _fenced(text: str, language: str = "") -> list[str]:
    """A block of code whose fence is longer than any in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [fence + language, text, fence]


def _plain(text: str) -> str:
    return " ".join(text.split())


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data: https:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.6 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }}
article {{ margin: 1.2rem 0; padding: .6rem 1rem; border-radius: .6rem; background: #8881; }}
article.user {{ background: #1e90ff24; }}
header {{ font-weight: 600; font-size: .9rem; }}
time, .note, .id {{ opacity: .65; font-weight: 400; font-size: .85rem; }}
pre {{ overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }}
img {{ max-width: 100%; }}
table {{ border-collapse: collapse; }} td, th {{ border: 1px solid; padding: .2rem .5rem; }}
details {{ margin: .6rem 1rem; font-size: .9rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p class="id">{id}</p>
{body}
</body>
</html>
"""
