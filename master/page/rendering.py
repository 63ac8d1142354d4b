"""Templates: what a view says becomes HTML. Whatever is written is escaped; nothing of it is code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from master.page.assets import assets

SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
"""Of every page."""


class Renderer:
    """`prefix`: of all addresses, where the page is reached below a path. All templates are compiled at once, so that
    no view waits for that."""

    def __init__(self, prefix: str = "") -> None:
        self._environment = Environment(
            loader=FileSystemLoader(Path(__file__).with_name("templates")),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals["prefix"] = prefix
        self._environment.globals["asset"] = {name: prefix + asset.path for name, asset in assets().items()}
        for template in self._environment.list_templates():
            self._environment.get_template(template)

    def html(self, template: str, **values: object) -> str:
        return self._environment.get_template(template).render(values)
