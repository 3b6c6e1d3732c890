"""A Grafana dashboard as values, and as the JSON that Grafana imports (schema version 39, Grafana 10 and later)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24


def counted(selector: str, window: str) -> str:
    """How much a counter has grown in `window`, with what a new series of it begins with: to Prometheus a first sample is no increase."""
    return f"({selector} unless {selector} offset {window}) or increase({selector}[{window}])"


@dataclass(frozen=True)
class Panel:
    """`queries`: (PromQL, legend). `kind`: timeseries, stat, table or heatmap. `width` of 24 columns, `unit` Grafana's."""

    title: str
    queries: tuple[tuple[str, str], ...]
    text: str
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False

    def document(self, number: int, x: int, y: int, height: int) -> dict[str, Any]:
        targets = [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": expr,
                "legendFormat": legend,
                "instant": self.kind in ("stat", "table"),
                "range": self.kind not in ("stat", "table"),
                "format": {"table": "table", "heatmap": "heatmap"}.get(self.kind, "time_series"),
            }
            for index, (expr, legend) in enumerate(self.queries)
        ]
        custom: dict[str, Any] = {}
        if self.kind == "timeseries":
            custom = {"fillOpacity": 20 if self.stacked else 0, "showPoints": "never", "spanNulls": False}
            custom["stacking"] = {"mode": "normal" if self.stacked else "none"}
        document: dict[str, Any] = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.text,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": height},
            "fieldConfig": {"defaults": {"unit": self.unit, "custom": custom}, "overrides": []},
            "targets": targets,
        }
        if self.kind == "heatmap":
            document["options"] = {"calculate": False, "yAxis": {"unit": self.unit}}
        return document


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]
    height: int = 8


@dataclass(frozen=True)
class Variable:
    """A choice at the top of the page: the values that label `label` has on `series`."""

    label: str
    series: str
    several: bool = False

    def document(self) -> dict[str, Any]:
        query = f"label_values({self.series}, {self.label})"
        return {
            "type": "query",
            "name": self.label,
            "label": self.label,
            "datasource": DATASOURCE,
            "query": {"query": query, "refId": self.label},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": self.several,
            "includeAll": self.several,
            "allValue": ".*" if self.several else None,
        }


@dataclass(frozen=True)
class Dashboard:
    name: str
    title: str
    text: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)

    def document(self) -> dict[str, Any]:
        panels: list[dict[str, Any]] = []
        y = 0
        for row in self.rows:
            place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
            title = {"id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": False, "gridPos": place}
            panels.append({**title, "panels": []})
            y, x = y + 1, 0
            for panel in row.panels:
                if x + panel.width > COLUMNS:
                    x, y = 0, y + row.height
                panels.append(panel.document(len(panels) + 1, x, y, row.height))
                x += panel.width
            y += row.height
        source = {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}
        return {
            "uid": f"pagefleet-{self.name}",
            "title": self.title,
            "description": self.text,
            "tags": ["pagefleet"],
            "schemaVersion": 39,
            "editable": False,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": [source, *(variable.document() for variable in self.variables)]},
            "links": [
                {"type": "dashboards", "tags": ["pagefleet"], "title": "Pagefleet", "asDropdown": True,
                 "keepTime": True, "includeVars": True}
            ],
            "panels": panels,
        }  # fmt: skip
