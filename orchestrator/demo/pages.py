"""The demo's report: a page per module and an index, as text. Pure; all text from source files is escaped.

The index has a place for the fleet, which is filled when the run is over.
"""

import io
import keyword
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Final

from orchestrator.demo.library import SHOWN_LINES, Definition, Module

STYLE: Final = """\
:root { color-scheme: light dark; --ink: #1d2430; --paper: #fdfcf9; --faint: #6b7280; --line: #e3e0d8; --bar: #d8e6df;
  --accent: #0b6b4f; --code: #f6f4ee; --kw: #8a2b5b; --str: #2c6a2f; --num: #0f5c8c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e2dc; --paper: #16191d; --faint: #949ba6; --line: #2c3138;
  --bar: #22443a; --accent: #6fd0ac; --code: #1d2126; --kw: #e08bb4; --str: #9bcf8e; --num: #84bfe8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 2.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
h1 { font-size: 1.9rem; margin: 0 0 .25rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
.lead { color: var(--faint); margin: 0 0 1.5rem; max-width: 46rem; }
.figures { display: flex; flex-wrap: wrap; gap: .6rem 2.2rem; margin: 1.4rem 0; padding: 0; list-style: none; }
.figures b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; }
.figures span { color: var(--faint); font-size: .85rem; }
h2.part { font-size: 1.5rem; margin-top: 3rem; }
figure { margin: 1.4rem 0; } figure svg { display: block; max-width: 100%; height: auto; }
figure svg + svg { display: none; }
@media (max-width: 46rem) { figure svg { display: none; } figure svg + svg { display: block; } }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--faint); font-size: .8rem; }
th, td { padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; white-space: nowrap; }
td.size { background: linear-gradient(var(--bar), var(--bar)) no-repeat left center / var(--w) 62%; min-width: 8rem; }
.chips { display: flex; flex-wrap: wrap; gap: .4rem; padding: 0; list-style: none; }
.chips li { border: 1px solid var(--line); border-radius: 99px; padding: .05rem .7rem; font-size: .88rem; }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 8px; padding: 1rem; overflow-x: auto;
  font: 13px/1.5 ui-monospace, monospace; tab-size: 4; }
.k { color: var(--kw); } .s { color: var(--str); } .m { color: var(--num); } .c { color: var(--faint); }
"""
FLEET_PLACE: Final = "<!-- the fleet -->"
"""The place for the fleet at the beginning of the index."""
_SHADES: Final = {tokenize.STRING: "s", tokenize.NUMBER: "m", tokenize.COMMENT: "c"}


def page_name(module: str) -> str:
    """Return the file name of a module's page."""
    return f"{module}.html"


def module_page(module: Module, source: str, *, known: frozenset[str]) -> str:
    """Return the page of one module; imports of `known` modules become links."""
    first = module.docstring.strip().split("\n\n")[0]
    body = [
        '<p><a href="index.html#library">The standard library</a></p>',
        f"<h1>{escape(module.name)}</h1>",
        f'<p class="lead">{escape(first) or "No docstring."}</p>',
        figures_list(
            {
                "lines": module.lines,
                "of code": module.code_lines,
                "bytes": module.size_bytes,
                "definitions": len(module.definitions),
                "branches": module.branches,
                "names used": module.names,
            }
        ),
        "<h2>Imports</h2>",
        _chips([_linked(name, known) for name in module.imports]) if module.imports else "<p>Nothing.</p>",
        "<h2>Defines</h2>",
        _definitions_table(module.definitions) if module.definitions else "<p>Nothing public to list.</p>",
        f"<h2>Source{f', the first {SHOWN_LINES} lines' if module.lines > SHOWN_LINES else ''}</h2>",
        f"<pre>{highlight(source)}</pre>",
    ]
    return _document(module.name, body)


def index_page(modules: Sequence[Module], *, python: str) -> str:
    """Return the index: all modules with their sizes, and the most imported ones."""
    known = frozenset(module.name for module in modules)
    imported = Counter(name for module in modules for name in module.imports if name in known)
    kinds = Counter(definition.kind for module in modules for definition in module.definitions)
    largest = max((module.lines for module in modules), default=1) or 1
    rows = "".join(_index_row(module, imported[module.name], largest) for module in modules)
    body = [
        FLEET_PLACE,
        '<h2 class="part" id="library">What it made: the Python standard library</h2>',
        (
            f'<p class="lead">{len(modules):,} modules of Python {escape(python)} on this machine: one task parsed '
            "each module, and one rendered its page.</p>"
        ),
        figures_list(
            {
                "modules": len(modules),
                "lines": sum(module.lines for module in modules),
                "classes": kinds["class"],
                "functions": kinds["function"],
                "methods": kinds["method"],
                "imports": sum(len(module.imports) for module in modules),
            }
        ),
        "<h2>Imported most</h2>",
        _chips([f"{_linked(name, known)} {count}" for name, count in imported.most_common(24)]),
        "<h2>All modules</h2>",
        (
            '<div class="wide"><table><thead><tr><th>module</th><th>lines</th><th class="n">defines</th>'
            '<th class="n">imports</th><th class="n">imported by</th></tr></thead>'
        ),
        f"<tbody>{rows}</tbody></table></div>",
    ]
    return _document("Towline's demo: a fleet at work", body)


def highlight(source: str) -> str:
    """Return the first lines of a source as HTML, with keywords, strings, numbers and comments marked."""
    lines = list(islice(io.StringIO(source), SHOWN_LINES))  # splitlines() would also split at form feeds
    text = "".join(lines)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    parts: list[str] = []
    done = 0
    for token in _tokens(text):
        shade = "k" if token.type == tokenize.NAME and keyword.iskeyword(token.string) else _SHADES.get(token.type)
        if shade is None:
            continue
        start = starts[token.start[0] - 1] + token.start[1]
        end = starts[token.end[0] - 1] + token.end[1]
        parts += (escape(text[done:start]), f'<span class="{shade}">', escape(text[start:end]), "</span>")
        done = end
    return "".join(parts) + escape(text[done:])


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """Yield tokens up to the cut, which may be in mid-expression."""
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (tokenize.TokenError, SyntaxError):
        return


def _index_row(module: Module, imported_by: int, largest: int) -> str:
    width = max(1, round(100 * module.lines / largest))
    summary = escape(module.docstring.strip().partition("\n")[0][:90])
    return (
        f'<tr><td><a href="{escape(page_name(module.name))}" title="{summary}">{escape(module.name)}</a></td>'
        f'<td class="size" style="--w:{width}%">{module.lines:,}</td><td class="n">{len(module.definitions):,}</td>'
        f'<td class="n">{len(module.imports):,}</td><td class="n">{imported_by:,}</td></tr>'
    )


def _definitions_table(definitions: Sequence[Definition]) -> str:
    rows = "".join(
        f"<tr><td>{item.kind}</td><td>{escape(item.name)}</td><td>{escape(item.summary)}</td>"
        f'<td class="n">{item.line}</td><td class="n">{item.lines}</td></tr>'
        for item in definitions
    )
    head = '<th></th><th>name</th><th></th><th class="n">from line</th><th class="n">lines</th>'
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def figures_list(figures: Mapping[str, int | str]) -> str:
    """Return figures with their names; numbers have their thousands separated."""
    items = "".join(
        f"<li><b>{value if isinstance(value, str) else f'{value:,}'}</b><span>{escape(name)}</span></li>"
        for name, value in figures.items()
    )
    return f'<ul class="figures">{items}</ul>'


def _chips(items: Sequence[str]) -> str:
    return '<ul class="chips">' + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _linked(name: str, known: frozenset[str]) -> str:
    shown = escape(name)
    return f'<a href="{escape(page_name(name))}">{shown}</a>' if name in known else shown


def _document(title: str, body: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="stylesheet" href="style.css">\n</head>\n<body>\n'
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )
