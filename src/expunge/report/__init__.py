"""Pages and tables people can read: self-contained, everything escaped, no scripts."""

from __future__ import annotations

from expunge.report.page import desk_page, run_page, statement_page
from expunge.report.tables import csv_text

__all__ = ["csv_text", "desk_page", "run_page", "statement_page"]
