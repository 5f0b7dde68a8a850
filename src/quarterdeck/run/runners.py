"""Who runs which kind of job. Each kind's runner is registered here, under the kind's name."""

from quarterdeck.run.auto import run_auto
from quarterdeck.run.worker import Runner

RUNNERS: dict[str, Runner] = {"auto": run_auto}
