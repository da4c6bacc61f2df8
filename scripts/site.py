"""Lays out the pages of this repository for mdBook, and checks the links of what it has built.

    site.py stage BOOK            copies the pages of site/SUMMARY.md, and every file that one of them links to, into BOOK/src
    site.py playground WASM HTML  puts the page of the playground, with all it needs, into one file below HTML, and a smaller
                                  one on the front page of the site
    site.py check HTML            fails if a link or a picture of a page below HTML leads nowhere, or to a heading that is not
                                  there
"""

import base64
import gzip
import html.parser
import os
import pathlib
import re
import shutil
import sys
import urllib.parse

# The folder of the playground's page: links to its sources lead to the page on the site.
PLAYGROUND = pathlib.Path("apps/playground")

# In Markdown, [text](target#heading).
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def stage(book):
    source = book / "src"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    summary = pathlib.Path("site/SUMMARY.md").read_text()
    pages = [pathlib.Path(link[1]) for link in LINK.findall(summary)]
    left_out = set(pathlib.Path("docs").rglob("*.md")) - set(pages)
    if left_out:
        sys.exit(f"error: site/SUMMARY.md lacks {', '.join(map(str, left_out))}")
    (source / "SUMMARY.md").write_text(LINK.sub(lambda link: link[1] + index(link[2], link[2]) + link[3], summary))
    for page in pages:
        write(source / index(str(page), str(page)), LINK.sub(lambda link: rewritten(link, page, pages, source), page.read_text()))
    for name in ("book.toml", "search-zh.js", "site.css"):
        shutil.copy(f"site/{name}", book)


def rewritten(link, page, pages, source):
    """The same link, once what it leads to is in the book: a page, a copy of a file, or a list of a folder's files."""
    target = page.parent / link[2]
    relative = pathlib.Path(os.path.relpath(target.resolve()))
    if relative.is_dir() and relative / "README.md" in pages:
        return link[1] + index(f"{link[2].rstrip('/')}/README.md", str(relative)) + link[3]
    if relative in pages:
        return link[1] + index(link[2], str(relative)) + link[3]
    if relative == PLAYGROUND:
        return f"{link[1]}{link[2].rstrip('/')}/index.html{link[3]}"
    if relative.is_dir():
        files = sorted(file for file in relative.iterdir() if file.is_file())
        for file in files:
            write(source / file, file.read_bytes())
        rows = "".join(f'<li><a href="{file.name}">{file.name}</a></li>' for file in files)
        write(source / relative / "index.html", f"<!doctype html><title>{relative}</title><h1>{relative}</h1><ul>{rows}</ul>")
        return f"{link[1]}{link[2].rstrip('/')}/index.html{link[3]}"
    if relative.is_file():
        write(source / relative, relative.read_bytes())
    return link[0]


def index(link, page):
    """The link to a page in the book, where the page of a folder is its index. The index of all is the front page."""
    return re.sub(r"(^|/)README\.md$", r"\1overview.md" if page == "README.md" else r"\1index.md", link)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def playground(program, site):
    folder = PLAYGROUND / "page"
    packed = base64.b64encode(gzip.compress(program.read_bytes(), mtime=0)).decode()
    script = f'const WASM = "{packed}";\n{(folder / "play.js").read_text()}'
    page = (folder / "index.html").read_text()
    page = page.replace('<link rel="stylesheet" href="play.css">', f"<style>\n{(folder / 'play.css').read_text()}</style>")
    page = page.replace('<script src="play.js"></script>', f"<script>\n{script}</script>")
    write(site / PLAYGROUND / "index.html", page)
    head, header, footer = re.split("<header>|<!-- playground -->", pathlib.Path("site/landing.html").read_text())
    page = re.sub("<title>.*</title>", "", page).replace("</head>", f"{head}</head>")
    page = re.sub("<header>.*</header>", lambda _: f"<header>{header}", page, flags=re.DOTALL)
    write(site / "index.html", page.replace("</body>", f"{footer}</body>"))


class Page(html.parser.HTMLParser):
    """The names and the links of a page."""

    def __init__(self, path):
        super().__init__()
        self.names, self.links = set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag, name) == ("a", "name"):
                self.names.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def check(site):
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    broken, failed, count = [], set(), 0
    for path, page in pages.items():
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue # elsewhere: a test does not depend on the network
            count += 1
            target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            if target.is_dir():
                target /= "index.html"
            name = urllib.parse.unquote(url.fragment)
            if not target.is_file() or (name and target in pages and name not in pages[target].names):
                failed.add(path)
                broken.append(f"{path.relative_to(site.resolve())}: {link}")
    print(f"{count} links and pictures of {len(pages)} pages")
    print(f"test result: counted. {len(pages) - len(failed)} passed; {len(failed)} failed")
    if broken:
        sys.exit("error: these lead nowhere:\n" + "\n".join(sorted(broken)))


{"stage": stage, "playground": playground, "check": check}[sys.argv[1]](*map(pathlib.Path, sys.argv[2:]))
