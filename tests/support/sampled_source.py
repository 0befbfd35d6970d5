"""A dashboard's source that answers with sample data; a test may close further rounds."""

import io
from typing import Any

import msgspec

from defl.dashboard.source import Download
from defl.dashboard.view import FactsView, Overview, RoundsView, RoundView
from support.sample_view import Sample


class SampledSource:
    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self._overview: Overview | None = None

    def overview(self) -> Overview:
        if self._overview is None or self._overview.rounds_closed != self.sample.rounds:
            self._overview = self.sample.overview()
        return self._overview

    def rounds(self, since: str) -> RoundsView:
        """`since` as sample_view writes it: sample.40."""
        known = int(since.partition(".")[2] or 0)
        return self.sample.rounds_view(known)

    def round(self, number: int, node: str | None) -> RoundView | None:
        del node
        return self.sample.round_view(number) if 1 <= number <= self.sample.rounds else None

    def facts(self, name: str | None) -> FactsView | None:
        del name
        return self.sample.facts()

    def file(self, node: str, name: str) -> Download | None:
        content = f"{node} {name}".encode()
        return Download(name, io.BytesIO(content), len(content))


class HostileSource(SampledSource):
    """Every text that a peer, a rule or a training program may have written begins with `words`."""

    # What the page reads as something else than text, and what the dashboard writes by itself.
    KEPT = frozenset({"version", "cells", "rounds", "href", "level", "mark", "phase", "verdict"})
    OURS = frozenset({"badge", "came", "doing", "fingerprint", "link", "model", "process"})
    OURS |= {"proven", "subtitle", "summary"}

    def __init__(self, sample: Sample, words: str) -> None:
        super().__init__(sample)
        self._words = words

    def overview(self) -> Any:
        return self._hostile(super().overview())

    def rounds(self, since: str) -> Any:
        return self._hostile(super().rounds(since))

    def round(self, number: int, node: str | None) -> Any:
        return self._hostile(super().round(number, node))

    def facts(self, name: str | None) -> Any:
        return self._hostile(super().facts(name))

    def _hostile(self, view: msgspec.Struct | None) -> Any:
        return self._changed(msgspec.to_builtins(view))

    def _changed(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._words + value
        if isinstance(value, list | tuple):
            return [self._changed(one) for one in value]
        if isinstance(value, dict):
            return {
                self._key(key): one if key in self.KEPT | self.OURS else self._changed(one)
                for key, one in value.items()
            }
        return value

    def _key(self, key: str) -> str:
        """Members and metrics are keys as well as texts."""
        is_named = key in self.sample.names or key in ("accuracy", "loss")
        return self._words + key if is_named else key
