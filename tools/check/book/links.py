#!/usr/bin/env python3
"""links.py BOOKDIR: checks the links of the book, and those of the Markdown files of the tree.

In the book, the file and the heading that a link names must exist. In Markdown files outside
docs/, the file must exist. Links to the web are not followed. A page of docs/ that the book lacks
is an error, too.
"""
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[3]


class Page(HTMLParser):
    """The links of a page, and the places in it that links may name."""

    def __init__(self, path):
        super().__init__()
        self.links, self.places = [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.places.add(attrs.get("id") or "")
        link = attrs.get("href") if tag in ("a", "link") else attrs.get("src")
        if link:
            self.links.append(link)


def local(link):
    """The path and the place of a link within the book or the tree; None for one to the web."""
    parts = urlsplit(link)
    return None if parts.scheme or parts.netloc else (unquote(parts.path), unquote(parts.fragment))


def book_problems(book):
    pages = {path: Page(path) for path in sorted(book.rglob("*.html"))}
    n_links = 0
    for path, page in pages.items():
        # What mdBook makes for servers has links from the root; the page for printing repeats all.
        if path.name in ("404.html", "print.html", "toc.html"):
            continue
        for target, place in filter(None, map(local, page.links)):
            n_links += 1
            file = (path.parent / target).resolve() if target else path
            if not file.exists():
                yield f"{path.relative_to(book)}: no file {target}"
            elif place and file in pages and place not in pages[file].places:
                yield f"{path.relative_to(book)}: no heading {target}#{place}"
    for source in sorted((ROOT / "docs").glob("*.md")):
        name = {"README": "index"}.get(source.stem, source.stem)
        if source.stem != "SUMMARY" and book / f"{name}.html" not in pages:
            yield f"docs/SUMMARY.md: no {source.name}"
    print(f"{len(pages)} pages, {n_links} links in the book")


def tree_problems():
    command = ["git", "ls-files", "*.md"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(lambda it: not it.startswith("docs/"), names.splitlines()):
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
        text = re.sub(r"`[^`]*`", "", text)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            target = local(link)
            if target and target[0] and not ((ROOT / name).parent / target[0]).exists():
                yield f"{name}: no file {link}"


def main():
    book = Path(sys.argv[1]).resolve()
    problems = [*book_problems(book), *tree_problems()]
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
