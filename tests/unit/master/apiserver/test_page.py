from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from master.apiserver import openapi, page
from master.apiserver.routes import ROUTES

VOID = {"meta"}
TEXT = page.html().decode()


class Reader(HTMLParser):
    """Holds each tag to its end, and keeps what refers to something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(TEXT)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        self.text += data


READ = Reader()


def test_the_page_is_well_formed_and_every_link_leads_somewhere() -> None:
    assert READ.open == []
    assert len(set(READ.ids)) == len(READ.ids)
    assert READ.links == {*(f"#{each}" for each in READ.ids), "openapi.json"}, "each section is linked to, too"


def test_every_route_type_and_field_is_on_the_page() -> None:
    document = openapi.document()
    assert all(route.path in READ.text and route.summary in READ.text for route in ROUTES)
    for name, schema in document["components"]["schemas"].items():
        assert f"type-{name}" in READ.ids
        assert all(field in READ.text for field in schema.get("properties", {}))


def test_nothing_runs_or_is_loaded_and_the_policy_says_so() -> None:
    assert not READ.tags & {"script", "img", "iframe", "link", "form", "object", "embed", "base"}
    assert not {name for name in READ.attributes if name.startswith("on") or name in ("style", "src")}
    (style,) = re.findall(r"<style>(.*?)</style>", TEXT, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert page.POLICY.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; ")
    assert "unsafe" not in page.POLICY and "url(" not in style and "@import" not in style


def test_text_of_the_document_is_never_markup() -> None:
    hostile = '<script>"&'
    schema = {"type": "object", "description": hostile, "properties": {hostile: {"enum": [hostile]}}}
    operation = {"operationId": hostile, "summary": hostile, "description": hostile, "parameters": (), "responses": {}}
    document = {
        "info": {"title": hostile, "version": hostile, "description": hostile},
        "paths": {hostile: {"get": operation}},
        "components": {"schemas": {hostile: schema}},
    }
    shown = page._page(document)
    assert "<script" not in shown and 'id="<' not in shown
    assert '"&"' not in shown
