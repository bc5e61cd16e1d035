"""An answer's Markdown as the HTML that Telegram takes: bold, italic, struck, code, links, quotes, and nothing else.

Telegram has no headings and no lists: a heading is bold, an item begins with a bullet. Made from a parsed tree, so that
tags are always closed in their order and what is no Markdown stays text.
"""

from html import escape

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

LINKED = ("http://", "https://", "tg://", "mailto:")
_TAGS = {"strong": "b", "em": "i", "s": "s"}
_markdown = MarkdownIt("commonmark", {"html": False}).enable("strikethrough")


def to_html(markdown: str) -> str:
    """The text with Telegram's tags; empty when nothing of it can be shown."""
    return _blocks(SyntaxTreeNode(_markdown.parse(markdown)), quoted=False).strip()


def _blocks(node: SyntaxTreeNode, *, quoted: bool, between: str = "\n\n") -> str:
    shown = (_block(child, quoted=quoted) for child in node.children)
    return between.join(text for text in shown if text)


def _block(node: SyntaxTreeNode, *, quoted: bool) -> str:
    match node.type:
        case "heading":
            return f"<b>{_inline(node)}</b>"
        case "fence" | "code_block":
            return _code(node.content.removesuffix("\n"), node.info.split()[0] if node.info.strip() else "")
        case "bullet_list" | "ordered_list":
            return _listed(node, quoted=quoted)
        case "blockquote":
            inside = _blocks(node, quoted=True)
            return inside if quoted or not inside else f"<blockquote>{inside}</blockquote>"
        case "hr":
            return "———"
        case "paragraph":
            return _inline(node)
        case _:
            return escape(node.content, quote=False)


def _listed(node: SyntaxTreeNode, *, quoted: bool) -> str:
    number = int(node.attrs.get("start", 1)) if node.type == "ordered_list" else None
    lines = []
    for place, item in enumerate(node.children):
        mark = "•" if number is None else f"{number + place}."
        parts = []
        for child in item.children:
            text = _block(child, quoted=quoted)
            nested = child.type in ("bullet_list", "ordered_list")
            parts.append("\n".join(f"  {line}" for line in text.split("\n")) if nested else text)
        lines.append(f"{mark} " + "\n".join(parts))
    return "\n".join(lines)


def _code(text: str, language: str) -> str:
    if not language:
        return f"<pre>{escape(text, quote=False)}</pre>"
    return f'<pre><code class="language-{escape(language)}">{escape(text, quote=False)}</code></pre>'


def _inline(node: SyntaxTreeNode) -> str:
    return "".join(_span(child) for child in node.children)


def _span(node: SyntaxTreeNode) -> str:
    match node.type:
        case "softbreak" | "hardbreak":
            return "\n"
        case "code_inline":
            return f"<code>{escape(node.content, quote=False)}</code>"
        case "strong" | "em" | "s":
            tag = _TAGS[node.type]
            return f"<{tag}>{_inline(node)}</{tag}>"
        case "link" | "image":
            target = str(node.attrs.get("href") or node.attrs.get("src") or "")
            text = _inline(node) or escape(node.content, quote=False)
            return f'<a href="{escape(target)}">{text}</a>' if target.startswith(LINKED) and text else text
        case "inline":
            return _inline(node)
        case _:
            return escape(node.content, quote=False)
