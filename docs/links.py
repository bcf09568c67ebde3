"""A hook of MkDocs: links from a page to files outside of docs/ lead to the repository."""

import posixpath
import re

LINK = re.compile(r"(\]\()((?:\.\./)+[^)\s#]+)(#[^)\s]*)?(\))")


def on_page_markdown(markdown, page, config, files):
    def resolve(m):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), m[2]))
        if path.startswith("docs/"):
            return m[0]
        return f"{m[1]}{config.repo_url.rstrip('/')}/blob/main/{path}{m[3] or ''}{m[4]}"

    return LINK.sub(resolve, markdown)
