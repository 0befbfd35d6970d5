"""For test_doc_commands.py: `defl` with small tables and synthetic batches in place of CIFAR-10.

It runs documented lines that would otherwise take hours and a download. Cells run in this process,
where the patches hold.
"""

import os
from dataclasses import replace
from hashlib import md5
from pathlib import Path

from in_driver import opened_in_driver

from defl.cli import paper
from defl.cli.main import main
from defl.lab.datasets import cifar10
from defl.lab.experiments.paper import report
from defl.lab.experiments.paper.settings import DataKind

NODES = 4
ROWS = 2  # without an attack, and with one attacker

for batch in Path(os.environ["DEFL_DATA"], cifar10.BATCHES).iterdir():
    cifar10.OFFICIAL_MD5[batch.name] = md5(batch.read_bytes(), usedforsecurity=False).hexdigest()
for (scale, kind), setting in report.SETTINGS.items():
    learning = replace(setting.learning, batch=4, steps=1)
    smaller = replace(setting, learning=learning, rounds=1, rounds_judged=1)
    report.SETTINGS[scale, kind] = smaller
tables = [table for table in report.TABLES.values() if table.kind is DataKind.IMAGES]
for table in tables:
    rows = tuple(row for row in table.rows if row.nodes == NODES)[:ROWS]
    report.TABLES[table.name] = replace(table, rows=rows, datasets=table.datasets[-1:])
setattr(paper, "opened", opened_in_driver)  # noqa: B010 - no workers
setattr(paper, "PARTS", (tables[-1].name,))  # noqa: B010 - those of `all`
paper.PARTS_OF.clear()

if __name__ == "__main__":
    main()
