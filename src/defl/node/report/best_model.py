"""The best model so far, by one metric of this node's own evaluation (`keep_best` in node.toml).

It takes three files in the node's folder: the model, whose metadata record the metric and its
value; the local entries that it was evaluated with; and its round certificate, as soon as the round
is proven. A better model replaces all three, so at most one is kept, across restarts.
"""

import asyncio
import shutil
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from defl.committee import Federation
from defl.errors import LocalFault, UserError
from defl.ids import Digest, Round
from defl.node.report.log import Log
from defl.node.report.model_file import read_metadata, write_model
from defl.node.store.blobs import Blobs
from defl.work import model_row

BEST = "best.safetensors"
BEST_CERTIFICATE = "best-certificate.json"
BEST_LOCAL = "best-local.npz"

# An evaluation may end a few rounds after its round was proven: those certificates wait for it.
CERTIFICATES_MAX = 8


class BestModel:
    def __init__(
        self,
        folder: Path,
        keep_best: str,
        federation: Federation,
        blobs: Blobs,
        local: Path,
        log: Log,
    ) -> None:
        """`keep_best` is a metric's name, with a minus in front if lower is better."""
        self._folder = folder
        self._keep_best = keep_best
        self._federation = federation
        self._blobs = blobs
        self._local = local
        self._log = log
        self._writing = asyncio.Lock()
        self._certificates: dict[Digest, str] = {}
        self._metric_missing = False
        self._digest: Digest | None = None
        self._value: float | None = None
        self._resume()

    def _resume(self) -> None:
        """Continue from the files of an earlier run, if they are of the same metric."""
        try:
            metadata = read_metadata(self._folder / BEST)
        except UserError:
            return  # there is none, or it is damaged: the next evaluation writes one
        if metadata.get("keep_best") == self._keep_best:
            self._digest = Digest(bytes.fromhex(metadata["digest"]))
            self._value = float(metadata["value"])

    async def evaluated(self, round_: Round, digest: Digest, metrics: Mapping[str, float]) -> None:
        """Keep this model if it is better than the one kept; its blob must still be readable."""
        value = metrics.get(self._keep_best.removeprefix("-"))
        if value is None:
            self._report_missing(metrics)
            return
        async with self._writing:
            if not isfinite(value) or not self._improves(value):
                return
            try:
                await asyncio.to_thread(self._write, round_, digest, value)
            except (OSError, LocalFault) as fault:
                self._log.warning("not written", what=BEST, why=fault)
                return
            self._digest, self._value = digest, value
            self._log.info("best model so far", round=round_, metric=self._keep_best, value=value)

    async def proven(self, digest: Digest, certificate: str) -> None:
        async with self._writing:
            self._certificates[digest] = certificate
            for old in list(self._certificates)[:-CERTIFICATES_MAX]:
                del self._certificates[old]
            if digest == self._digest:
                await asyncio.to_thread(self._write_certificate, certificate)

    def _improves(self, value: float) -> bool:
        if self._value is None:
            return True
        return value < self._value if self._keep_best.startswith("-") else value > self._value

    def _report_missing(self, metrics: Mapping[str, float]) -> None:
        if not self._metric_missing:
            self._metric_missing = True
            self._log.warning(
                "no best model is kept: evaluate does not return the metric of keep_best",
                keep_best=self._keep_best,
                returned=",".join(metrics) or "nothing",
            )

    def _write(self, round_: Round, digest: Digest, value: float) -> None:
        # The model last: its metadata say that the other files are in place.
        (self._folder / BEST_CERTIFICATE).unlink(missing_ok=True)
        (self._folder / BEST_LOCAL).unlink(missing_ok=True)
        if self._local.exists():
            shutil.copy(self._local, self._folder / BEST_LOCAL)
        metadata = {
            "round": str(round_),
            "digest": digest.hex(),
            "keep_best": self._keep_best,
            "value": repr(value),
        }
        row = model_row(self._federation, self._blobs.read(digest))
        write_model(self._folder / BEST, self._federation.schema, row, metadata)
        if digest in self._certificates:
            self._write_certificate(self._certificates[digest])

    def _write_certificate(self, text: str) -> None:
        path = self._folder / BEST_CERTIFICATE
        temporary = path.with_name(f".{path.name}.writing")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
