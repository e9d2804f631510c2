"""MkDocs hooks that add the README, and the files outside docs/ that pages link to, to the
documentation site.

The pages link to configs, results, and folders of the repository by relative paths, which lead
somewhere in a checkout and on a code host. The site holds a copy of each such file under
repository/, and the links lead there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
LANGUAGES = {".yaml": "yaml", ".json": "json"}


def place_on_site(path: str) -> str:
    """Page of the site for a file or folder of the repository. Both are relative to their top."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"repository/{path}/index.md"
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def place_in_repository(page: str) -> str:
    """Inverse of ``place_on_site`` for pages in Markdown."""
    if page == "index.md":
        return "README.md"
    path = page.removeprefix("repository/")
    if path == page:
        return f"docs/{page}"
    return path if (ROOT / path).is_file() else path.removesuffix("/index.md").removesuffix(".md")


def targets(path: str, text: str) -> list[str]:
    """Files and folders of the repository to which a page of it links."""
    folder = os.path.dirname(path)
    named = [os.path.normpath(os.path.join(folder, link)) for link in LINK.findall(text)]
    return [name for name in named if (ROOT / name).exists()]


def content(path: str) -> str:
    """Markdown of a page that stands for a file or folder of the repository."""
    place = ROOT / path
    if place.is_dir():
        names = sorted(file.name for file in place.iterdir() if file.suffix in {".md", ".yaml"})
        base = os.path.basename(path)
        return f"# {path}\n\n" + "".join(f"- [{name}]({base}/{name})\n" for name in names)
    text = place.read_text(encoding="utf-8")
    if place.suffix == ".md":
        return text
    return f"# {path}\n\n```{LANGUAGES.get(place.suffix, 'text')}\n{text}```\n"


def on_files(files: Files, config: Any) -> Files:
    waiting = ["README.md", *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        text = content(path)
        if not path.startswith("docs/"):
            files.append(File.generated(config, place_on_site(path), content=text))
        new = {name for name in targets(path, text) if not name.startswith("docs/")} - seen
        seen |= new
        waiting += sorted(new)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    here = page.file.src_uri
    folder = os.path.dirname(place_in_repository(here))

    def rewrite(link: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join(folder, link[1]))
        if not (ROOT / path).exists():
            return link[1]  # the strict build names it
        return os.path.relpath(place_on_site(path), os.path.dirname(here))

    return LINK.sub(rewrite, markdown)
